"""Compare variants of a GPT on your own text within a time budget, ranked with confidence intervals.

comparison    every combination of the options; timing, learning rates, then every variant with every seed
ranking       which is better than which, by how much, with intervals; in a few sentences
report        the table, and the page
"""
