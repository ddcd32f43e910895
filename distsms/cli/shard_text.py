"""What `distsms shard` prints: the columns of a table, what the data sets contain, and how the rows were split."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.base.communicator import Communicator
from distsms.base.formatting import format_bytes, format_rows
from distsms.cli.columns import format_columns
from distsms.cli.progress import Progress, describe_files
from distsms.cli.terminal import Speaker, print_warning
from distsms.ingest.options import ConversionObserver
from distsms.shards.column_options import ColumnReport
from distsms.shards.labels import class_names
from distsms.shards.manifest import Manifest
from distsms.shards.row_statistics import describe


class ShardNarrator(ConversionObserver):
    """Prints what is reported as files are read, on the root unless the user gave --quiet."""

    def __init__(self, verbose: bool) -> None:
        self._verbose, self._tasks = verbose, Progress.on_root(verbose)

    def converting(self, task: str, unit: str, done: float, of: float) -> None:
        self._tasks.of_task(task, unit, done, of)

    def surveyed(self, reports: Sequence[ColumnReport]) -> None:
        self.told(format_columns(reports))

    def told(self, text: str) -> None:
        self.close()
        if self._verbose:
            print(text, flush=True)

    def cautioned(self, warning: str) -> None:
        print_warning(warning)

    def close(self) -> None:
        """End the line of the progress."""
        self._tasks.close()


def show_split(parts: Sequence[Manifest], say: Speaker, brief: bool = False) -> None:
    """Print how the rows were split into parts; with `brief` also how many each has."""
    train, split = parts[0], parts[0].split
    if brief and len(parts) == 2:
        say(f"rows      {_describe_parts(train, parts[1])}")
    dates = [report.name for report in train.columns or () if report.taken_for == "date"]
    if split is not None and split.get("by", "rows") in ("rows", "doubles") and dates and train.time is None:
        latest = f"--time {dates[0]} would hold out the latest rows, as a model meets them"
        say(f"hint      the rows were split at random, though the table has dates; {latest}")
    if split is not None and (left := split["of"] - sum(part.n for part in parts)):
        say(f"  left out  {left} of {split['of']} rows: the fractions add up to {sum(split['fractions']):g}")


def show_rate(manifest: Manifest, seconds: float, comm: Communicator, say: Speaker) -> None:
    n_bytes = sum(file["bytes"] for file in manifest.source)
    speed = f"{format_bytes(n_bytes / seconds)}/s"
    say(f"  from      {format_bytes(n_bytes)} in {seconds:.2f} s on {comm.size} rank(s), {speed}")


def _describe_parts(train: Manifest, test: Manifest) -> str:
    by = (train.split or {}).get("by", "rows")
    in_words = {"rows": "at random", "groups": "by whole groups", "doubles": "at random, equal rows together"}
    if by == "time" and train.time is None:
        return f"{train.n:,} to train, and the last {test.n:,} held out to test, in the order of the files"
    if by == "time":
        return f"{train.n:,} to train, and the latest {test.n:,} held out to test ({describe(test)['time']})"
    return f"{train.n:,} to train, and {test.n:,} held out to test, {in_words[by]}"


def show_summary(manifest: Manifest, say: Speaker) -> None:
    names = class_names(manifest.label_map)
    labels = ", ".join(f"{sign} is {label}" for sign, label in names.items() if label)
    say(f"{manifest.directory}: {format_rows(manifest.n)}, {manifest.p} columns, {manifest.describe_entries()}")
    say(f"  classes   {manifest.n_pos} positive, {manifest.n_neg} negative ({labels})")
    if manifest.table is not None:
        say(f"  columns   {manifest.table.describe()}")
        others = [about["column"] for about in (manifest.group, manifest.time, manifest.weight) if about]
        if unused := ", ".join(name for name in others if name in manifest.table.dropped):
            say(f"  apart     {unused}: no feature, unless you give --keep")
    if manifest.coded:
        say(f"  codes     {manifest.coded.describe()}")
    if manifest.normalization.kind != "none":
        which = "" if manifest.columns is None else ", but for features of 0 and 1"
        say(f"  training  normalized ({manifest.normalization.kind}){which}; the files hold the rows as they were")
    if manifest.split is not None:
        say(f"  split     by {manifest.split.get('by', 'rows')}: {manifest.n} of {manifest.split['of']} rows")
    say(f"  files     {describe_files(manifest)}")
    for name, description in describe(manifest).items():
        if name != "warning":
            say(f"  {name:<9} {description}")
