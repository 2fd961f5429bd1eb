"""A question of your own: variants of a GPT on your text, in the time that you have, ranked with intervals.

variants   which models: every combination of what is to be compared
pacing     how many steps the time allows
study      pace, learning rates, then every variant with every seed
ranking    who is better than whom, by how much, and how sure that is
words, table, page   the same for people
"""
