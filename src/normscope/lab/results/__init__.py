"""Results: intervals, answers and verdicts, the metrics of all runs, and the outcome of a claim as JSON."""
