"""Compare solvers: python -m scripts.compare --help."""

import sys

from scripts.compare.command import main

if __name__ == "__main__":
    sys.exit(main())
