"""The version of the package and the commit of its code, which files that it writes name."""

from __future__ import annotations

import functools
import os

__version__ = "0.2.0"
COMMIT = "commit.txt"
"""The file beside this one in which a build records the commit, since what is installed lies in no clone."""


@functools.cache
def commit() -> str | None:
    """Return the commit of the code, with `-dirty` if files have changed since; None if it is not known. Local."""
    import subprocess  # which every start of the program would load

    folder = os.path.dirname(os.path.abspath(__file__))
    clone = os.path.dirname(os.path.dirname(folder))
    try:
        if not os.path.exists(os.path.join(clone, ".git")):
            with open(os.path.join(folder, COMMIT), encoding="utf-8") as file:
                return file.read().strip() or None
        words = ["git", "-C", clone, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"]
        others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        described = subprocess.run(  # noqa: S603 - these are our own words
            words, capture_output=True, text=True, check=True, timeout=5, env={**others, "GIT_OPTIONAL_LOCKS": "0"}
        )
        return described.stdout.strip() or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def full_version() -> str:
    """Return the version, with the commit in parentheses if it is known. Local."""
    return f"{__version__} (commit {commit()})" if commit() else __version__
