"""What `distsms features` prints, and what a path and a baseline print alike."""

from __future__ import annotations

import argparse

from distsms.base.communicator import Communicator
from distsms.base.formatting import format_rows
from distsms.cli.progress import Progress, describe_files, usage_line, usage_table
from distsms.cli.terminal import Speaker
from distsms.workflow.features import Features, FeaturesObserver


class FoldsNarrator(FeaturesObserver):
    """Prints what a path and a baseline report alike. The line on the features of a fold is all that they get."""

    def __init__(self, args: argparse.Namespace, comm: Communicator) -> None:
        self._args, self._comm, self._speaks = args, comm, comm.is_root and not args.quiet
        self._say, self._progress = Speaker(self._speaks), Progress.on_root(self._speaks)

    def chose_solver(self, solver: str, why: str) -> None:
        if why:
            self._say(f"solver    {solver}: {why}")

    def progress(self, task: str, unit: str, done: float, of: float) -> None:
        self._progress.of_task(task, unit, done, of)

    def made_features(self, text: str) -> None:
        self._progress.close()
        self._say(text)

    def close(self) -> None:
        """End what is shown of the progress, and print the warnings."""
        self._progress.close()
        self._say.close()


class FeaturesNarrator(FoldsNarrator):
    """Prints what is told of making features, and what they are."""

    def noted(self, kind: str, text: str) -> None:
        self._progress.close()
        self._say(f"  {kind:<9} {text}")

    def conclude(self, result: Features) -> None:
        """Print what was made, and what it took."""
        self._progress.close()
        if not self._speaks:
            return
        say, manifest = self._say, result.manifest
        say(f"{manifest.directory}: {format_rows(manifest.n)}, {manifest.p} columns, {manifest.describe_entries()}")
        say(f"  features  {result.feature_map.describe()}")
        for line in result.feature_map.listing():
            say(f"  {line}")
        if result.labels_note:
            say(f"  note      {result.labels_note}")
        say(f"  files     {describe_files(manifest)}")
        say(f"  from      {self._args.data} in {result.seconds:.2f} s on {self._comm.size} rank(s)")
        say(usage_line(result.usage))
        if self._args.usage:
            say(usage_table(result.usage))
        say.close()
