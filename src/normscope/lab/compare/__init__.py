"""Compare variants of a GPT on your own text within a time budget, ranked with confidence intervals.

variants      every combination of the options to compare
comparison    timing, learning rates, then every variant with every seed
ranking       which is better than which, by how much, with intervals
summary, table, page   the result for people
"""
