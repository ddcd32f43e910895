"""What holds only in a process that runs the program, which no code of users shares."""

from __future__ import annotations

import sys
from typing import Any

runs = False
"""Whether this process runs the program."""
options: dict[str, Any] = {}
"""What its command line says, with the file of --config, by the names of options; see `distsms.cli.config`."""


class _NoPandas:
    """A finder of modules for which pandas is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def leave_out_pandas(pyarrow: Any) -> None:
    """Let pyarrow, at its first array, take pandas for absent in the program: to load it takes up to 0.7 s."""
    if runs and "pandas" not in sys.modules:
        finder: Any = _NoPandas()
        sys.meta_path.insert(0, finder)
        pyarrow.array([])
        sys.meta_path.remove(finder)
