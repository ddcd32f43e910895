"""The program; see `distsms.cli.main`."""

from __future__ import annotations

import sys

from distsms.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
