"""`python -m normscope` is `normscope`."""

import sys

from normscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
