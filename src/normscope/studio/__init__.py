"""`normscope studio`: a local web page to see and touch scopes, models, runs, x-rays and the lab."""
