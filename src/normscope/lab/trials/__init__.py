"""What can be run: training on text and on pictures, and the data for it."""
