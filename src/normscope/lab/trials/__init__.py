"""What trials run: training on text and on images, and the data for it."""
