"""Optimizers: Muon for matrices, AdamW for everything else."""
