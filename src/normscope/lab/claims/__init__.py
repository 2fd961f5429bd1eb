"""The claims: one file each, found by `normscope.lab.catalog`."""
