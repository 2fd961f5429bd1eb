"""`normscope studio`: a local web interface for scopes, models, runs, x-rays and the lab."""
