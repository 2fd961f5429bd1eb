"""`python -m normscope` is `normscope`."""

from normscope.cli import program

if __name__ == "__main__":
    program()
