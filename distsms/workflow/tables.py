"""The data sets that a training makes of files and of tables in memory."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from distsms.base import addresses
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, naming_failures, read_whole
from distsms.base.formatting import format_bytes
from distsms.base.timing import Clock
from distsms.base.wording import option
from distsms.ingest import frames
from distsms.ingest.file_names import are_files, expand, files_of, is_data_set
from distsms.ingest.options import ConversionObserver, ReadOptions, Workspace, sort_options
from distsms.models import inputs, model
from distsms.shards.from_arrays import is_frame
from distsms.shards.manifest import FEATURES_FOLDER, MANIFEST, Manifest, read_manifest, remove_features_of
from distsms.shards.row_statistics import label_warnings
from distsms.shards.sequence_rules import SequenceOptions
from distsms.training import checkpoint
from distsms.training.plan import INTERPRETER
from distsms.training.recorder import check_trace
from distsms.workflow.requests import OF_FILES, Arrays, TrainRequest

RECORD = "made-from.json"  # the file, in the folder of `TrainRequest.shards`, that says what these were made from
LISTS = ("drop", "keep", "missing", "not_missing", "names", "categorical", "numeric", "spectra")


class DataSets(NamedTuple):
    """The data sets of a training on files or on a table."""

    training: Manifest  # the data set of the training rows
    held_out: Manifest | None  # that of the test rows, if rows were held out
    test: str | os.PathLike[str] | None  # the test rows, be they held out or the user's own
    files: tuple[str, ...]  # the files that the user named; none for a table in memory
    called: dict[str, str]  # what messages call the folders of temporary data sets
    temporary: bool  # whether the data sets are removed at the end
    same_rows: bool  # whether the test rows are known to be training rows
    made: bool  # whether they were made now, and not by an earlier start of the run
    warnings: list[str]  # what is odd about labels and split


def of_paths(data: Any) -> list[str]:
    """Return the paths of a request's data, none if the rows are in memory. Local."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, list | tuple) and all(isinstance(path, str | os.PathLike) for path in data):
        return list(map(os.fspath, data))
    return []


def are_tables(data: Any, comm: Communicator) -> bool:
    """Return whether data sets have to be made of a request's data. **Collective.**"""
    paths = of_paths(data)
    return is_frame(data) or bool(paths and comm.bcast(are_files(paths)))


@contextlib.contextmanager
def as_data_sets(
    request: TrainRequest, comm: Communicator, observer: ConversionObserver, clock: Clock, in_files: bool = False
) -> Iterator[DataSets]:
    """Make data sets of a request's files or table, which messages call by the names of users; `in_files`, where they
    would otherwise stay in memory. **Collective.**"""
    several, in_memory, kept = frames.on_several_hosts(comm), is_frame(request.data), request.shards is not None
    base, names, same_rows = Path(request.shards or ""), list[str](), False
    test, split = request.test, request.split.shares is not None
    part = "train" if split or test is not None else "."  # the folder of the training rows
    with comm.fail_together():
        _check(request, several)
        if not in_memory:
            names = expand(of_paths(request.data))
        test_files = [] if test is None else files_of(test)
        for name, file in product(names, test_files):
            remote = addresses.is_address(name) or addresses.is_address(file)
            same_rows |= name == file if remote else os.path.samefile(name, file)
        if comm.is_root:
            if kept and not request.resume and os.path.lexists(base):
                if not base.is_dir():
                    raise InputError(f"{option('shards', base)}: is not a folder")
                if (base / part / MANIFEST).exists() and not request.overwrite:
                    there = f"{base / part}: holds a data set already. Train on it (distsms train {base / part})"
                    raise InputError(f"{there}, name other {option('shards')}, or replace it ({option('overwrite')})")
            if request.checkpoint is not None and not request.resume:
                checkpoint.require_none(Path(request.checkpoint))
            if request.output is not None:
                model.check_replaceable(request.output)
            for output in (request.output, request.trace):
                if output is not None:
                    inputs.check_distinct(output, *names)
            if request.trace is not None:
                check_trace(os.fspath(request.trace))
            observer.opening(names)
    names = comm.bcast(names)
    with contextlib.ExitStack() as open_folders:
        whole, called = "the table" if in_memory else frames.short_list(names), dict[str, str]()
        if not kept:
            temporary = open_folders.enter_context(frames.folder_of_all(comm))
            base = temporary / ("table" if in_memory else addresses.name_of(names[0]))
            called = {f"{base / part / FEATURES_FOLDER}": whole, f"{base / 'train'}": whole}
            called |= {f"{base / 'test'}": f"test rows of {whole}", f"{base}": whole}
        open_folders.enter_context(frames.renaming(called))
        directory = base / part
        with clock.phase("shards"):
            data_sets = _make(request, names, base, directory, comm, observer, in_files)
        with comm.fail_together():
            if not (made := bool(data_sets)):
                data_sets = [read_manifest(folder) for folder in (directory, *[base / "test"] * split)]
            training, held_out = data_sets[0], data_sets[1] if split else None
            if not (training.n_pos and training.n_neg):
                label = "positive" if training.n_pos else "negative"
                raise InputError(f"{whole}: all {training.n} training rows are {label}; two classes are needed")
            test_set = read_manifest(test) if test is not None and is_data_set(test) else held_out
            if test_set is not None and not (test_set.n_pos and test_set.n_neg):
                more = f"hold out more by {option('split')}, or others by {option('split_by')} or {option('seed')}"
                few = f"{test_set.n_pos} of {test_set.n} test rows are positive"
                raise InputError(f"{few}, so no model can be judged by them; {more}")
        named = request.reading.get("positive") is not None
        yield DataSets(
            training,
            held_out,
            test if held_out is None else base / "test",
            tuple(names),
            called,
            temporary=not kept,
            same_rows=same_rows,
            made=made,
            warnings=list(dict.fromkeys(warning for part in data_sets for warning in label_warnings(part, named))),
        )


def _check(request: TrainRequest, several: bool) -> None:
    """Raise InputError for what can be refused before the rows are read. Local."""
    if request.shards is None and several:
        raise InputError(frames.NO_FOLDER % f"{option('shards', text='FOLDER')}")
    if request.shards is None and request.checkpoint is not None:
        shards = option("shards", text="FOLDER")
        raise InputError(f"a run with {option('checkpoint')} is resumed with its shards; give {shards} to keep them")
    if request.overwrite and (request.shards is None or request.resume):
        one = f"give it with {option('shards')}, and without {option('resume')}"
        raise InputError(f"{option('overwrite')} replaces the shards in the folder of {option('shards')}: {one}")
    if request.memory is not None and request.memory < INTERPRETER:
        least = f"Python and its libraries alone take {format_bytes(INTERPRETER)}. Allow more memory"
        raise InputError(f"{option('memory')} {format_bytes(request.memory)} is too little: {least}")
    shares = request.split.shares
    if shares is not None and request.test is not None:
        raise InputError(f"{option('split')} holds out test rows, and {option('test')} names others: give one of them")
    if shares is not None and len(shares) != 2:
        first = shares[0] if len(shares) == 1 else 0.8
        raise InputError(f"{option('split')} takes shares for training and test rows, such as {first:g},{1 - first:g}")
    request.split.splitter(None, None)
    test = request.test
    if test is not None and not all(addresses.is_address(file) or os.path.exists(file) for file in files_of(test)):
        raise InputError(f"{option('test', request.test)}: there is no such file or data set")


def _make(
    request: TrainRequest,
    files: Sequence[str],
    base: Path,
    directory: Path,
    comm: Communicator,
    observer: ConversionObserver,
    in_files: bool,
) -> list[Manifest]:
    """Convert the rows; return no data sets if an earlier start has made them of the same files. **Collective.**"""
    from distsms.ingest.convert import convert  # which loads parts of SciPy

    kept, in_memory, there = request.shards is not None, is_frame(request.data), False
    with comm.fail_together():
        if comm.is_root and kept and request.resume and (directory / MANIFEST).exists():
            earlier = [file["name"] for file in read_manifest(directory).source]
            now = ["rows-00000.parquet"] if in_memory else [*map(addresses.name_of, files)]
            if (earlier[:1] if in_memory else earlier) != now:
                raise InputError(f"{directory}: was made from other files than these; name another folder")
            _check_record(base, _record(request, files))
            there = True
        complete = there and (base / RECORD).exists()
        if comm.is_root and kept and not complete:
            (base / RECORD).unlink(missing_ok=True)
    there, complete = comm.bcast((there, complete))
    if complete and not in_memory:  # nothing shows that a table in memory is the same
        return []
    reading, writing = sort_options(request.reading)
    reading = replace(reading, workspace=Workspace(memory=request.memory, called="the table" * in_memory))
    split = request.split.splitter(reading.group, reading.time)
    writing = replace(writing, split=split, durable=kept, in_memory=not (kept or in_files or request.memory))
    with as_files(request.data, files, base if kept else base.parent, comm) as inputs_of_all:
        data_sets = convert(
            list(inputs_of_all),
            base if split else directory,
            comm,
            reading,
            writing,
            observer=observer,
            overwrite=there or request.overwrite,
        )
        frames.rename_in_notes(data_sets, inputs_of_all)
    with comm.fail_together():
        if comm.is_root and kept:
            remove_features_of(directory)
            with atomic_write(base / RECORD) as file:
                file.write(json.dumps(_record(request, files), indent=1).encode())
    return data_sets


@contextlib.contextmanager
def as_files(data: Any, files: Sequence[str], folder: Path, comm: Communicator) -> Iterator[dict[str, str]]:
    """Yield the files with the rows of all ranks, and their names for users. Those of rows in memory are
    temporary, in a new folder in `folder` or, if that is not there, in the one where it would be. **Collective.**"""
    if not (is_frame(data) or isinstance(data, Arrays)):
        yield {file: file for file in files}
        return
    ending, noun = ("parquet", "the table") if is_frame(data) else ("npz", "the arrays")

    def make_folder() -> Path:
        near = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
        with naming_failures(near):
            return Path(tempfile.mkdtemp(prefix=".rows-", dir=near))

    own = comm.of_root(make_folder)
    paths = [os.fspath(own / f"rows-{rank:05d}.{ending}") for rank in range(comm.size)]
    nouns = [noun] if comm.size == 1 else [f"{noun} of rank {rank}" for rank in range(comm.size)]
    my_path = paths[comm.rank]
    called = dict(zip(paths, nouns, strict=True))
    with frames.renaming(called):
        try:
            with comm.fail_together():
                if is_frame(data):
                    frames.write_frame(data, my_path)
                else:
                    frames.write_arrays(my_path, **data._asdict())
            yield called
        finally:
            with contextlib.suppress(OSError):  # other ranks may still have files there
                Path(my_path).unlink(missing_ok=True)
                own.rmdir()


def _record(request: TrainRequest, files: Sequence[str]) -> dict[str, Any]:
    """Return what the shards follow from, ready for JSON: files with their sizes and times, and options."""
    listed = list[dict[str, Any]]()
    for name in () if is_frame(request.data) else files:
        at = addresses.status(name)
        listed.append({"name": addresses.name_of(name), "bytes": at.st_size, "changed": at.st_mtime_ns})
    split, reading = request.split, dict(request.reading)
    writing = {name: reading.pop(name, None) for name in ("normalize", "weight_file", "n_shards", "dtype")}
    read = vars(ReadOptions(**reading))
    options = {name: read[name] for name in sorted(OF_FILES - {"columns", "sequences"})} | vars(read["columns"])
    options |= vars(read["sequences"] or SequenceOptions()) | writing
    options |= {"split": split.shares and tuple(split.shares), "split_by": split.by, "seed": split.seed}
    # Lists and tuples are the same, but for the shares, and so they were in earlier versions.
    texts = {name: repr(list(value) if name in LISTS else value) for name, value in options.items()}
    return {"files": listed, "options": {name.replace("_", "-"): text for name, text in texts.items()}}


def _check_record(base: Path, record: dict[str, Any]) -> None:
    """Raise InputError if the shards were made from other files, or with other options. On the root."""
    path = base / RECORD
    if not path.exists():
        return
    with naming_failures(path):
        try:
            before = json.loads(read_whole(path))
            files, options = before["files"], dict(before["options"])
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path}: is damaged: {error!r}; remove {base} to make the shards again") from error
    remedy = f"Give the same, or remove {base} and the checkpoint to begin again"
    if files != record["files"]:
        raise InputError(f"{base}: the files have changed since these shards were made from them. {remedy}")
    for name, value in record["options"].items():
        if options.get(name, value) != value:
            other = option(name.replace("-", "_"))
            raise InputError(f"{base}: these shards were made with another {other}. {remedy}")
