"""The arithmetic behind the blocks, one file an operation, each in a form that reads like its formula."""
