"""How a process shares the machine with others: its load, and how many threads to use."""
