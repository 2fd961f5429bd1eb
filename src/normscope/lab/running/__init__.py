"""Runs trials in parallel: keys and cache, workers, scheduler, tuning, time estimates; `run_claims` uses all of it."""
