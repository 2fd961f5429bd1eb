"""`normscope export`: a run in a format for somewhere else, such as one HTML page with the model in it."""
