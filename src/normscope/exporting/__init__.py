"""`normscope export`: export a run to another format, such as an HTML page that contains the model."""
