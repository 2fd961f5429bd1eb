"""One file per topic of `normscope explain`."""
