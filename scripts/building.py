"""Steps of setuptools that record the commit in what is built, since what is installed from it lies in no clone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parents[1]))

from distsms.base import _version


def record_commit(folder: Path) -> None:
    """Write the commit of the clone, or that which an sdist has recorded, into the package in a folder."""
    if commit := _version.commit():
        (folder / "distsms" / "base" / _version.COMMIT).write_text(f"{commit}\n", encoding="utf-8")


class BuildWithCommit(build_py):
    """Collects the files of a wheel."""

    def run(self) -> None:
        """Collect them. An editable installation asks its clone."""
        super().run()
        if not self.editable_mode:
            record_commit(Path(self.build_lib))


class SdistWithCommit(sdist):
    """Collects the files of an sdist."""

    def make_release_tree(self, base_dir: str, files: Iterable[str]) -> None:
        """Collect them."""
        super().make_release_tree(base_dir, files)
        record_commit(Path(base_dir))
