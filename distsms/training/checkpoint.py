"""The checkpoint folder, with the two newest states of a run; each file is complete or absent.

checkpoint.npz and checkpoint.older.npz are NumPy archives (zip, not compressed, without pickle) of info.json (format,
version, `problem` that must be the same in a resumed run, `numbers`, and `shapes` by name) and NAME.npy, float64 (k, p)
or (k,); members have checksums. The contents are those of `distsms.optim.run`. Only the root uses files.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from distsms.base import files
from distsms.base.errors import InputError
from distsms.base.files import DAMAGED, atomic_write, look_at, open_zip, require_space
from distsms.base.schema import differences
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.optim.result import Snapshot
from distsms.parallel.vectors import Vectors

FORMAT, VERSION = "distsms-checkpoint", 2
NEWEST, OLDER = "checkpoint.npz", "checkpoint.older.npz"
INFO = "info.json"


class Rows(NamedTuple):
    """The shape of an array, and its rows one by one, so that it can be written without being held as a whole."""

    shape: tuple[int, ...]
    rows: Iterable[Floats]

    @classmethod
    def of(cls, array: Floats) -> Rows:
        return cls(array.shape, array if array.ndim > 1 else [array])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file that was read through and is undamaged."""

    path: Path
    problem: dict[str, Any]
    numbers: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def rows(self, name: str) -> Iterator[Floats]:
        """Yield the rows of a stored array: each row (p,) if its shape is (k, p), or all of it if that is (k,)."""
        shape = self.shapes[name]
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
            _read_header(member)
            for _ in range(shape[0] if len(shape) > 1 else 1):
                content = member.read(8 * shape[-1])
                if len(content) < 8 * shape[-1]:
                    raise InputError(f"{self.path}: damaged: {name} ends too early")
                yield np.frombuffer(content, np.float64).copy()

    def array(self, name: str) -> Floats:
        return np.array(list(self.rows(name))).reshape(self.shapes[name])


def save(folder: Path, problem: Mapping[str, Any], numbers: Mapping[str, Any], arrays: Mapping[str, Rows]) -> None:
    """Write the newest checkpoint; the previous one becomes the older. Local. Raises InputError."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
    require_space(folder, sum(8 * int(np.prod(array.shape)) for array in arrays.values()))
    shapes = {name: array.shape for name, array in arrays.items()}
    info = {"format": FORMAT, "version": VERSION, "problem": problem, "numbers": numbers, "shapes": shapes}
    with atomic_write(folder / NEWEST) as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(INFO, json.dumps(info))
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write(member, array)
        file.finish()
        if (folder / NEWEST).exists():
            os.replace(folder / NEWEST, folder / OLDER)


def _write(member: IO[bytes], array: Rows) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": array.shape})
    member.write(header.getvalue())
    for row in array.rows:
        member.write(np.ascontiguousarray(row, "<f8").data)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, or None, and messages on damaged files. Local."""
    words = list[str]()
    for name in (NEWEST, OLDER):
        try:
            return read(folder / name), words
        except FileNotFoundError:
            continue
        except InputError as error:
            words.append(str(error))
    return None, words


def load(folder: Path, problem: Mapping[str, Any]) -> tuple[Checkpoint | None, list[str]]:
    """Return what `newest` does; InputError if all files are damaged, or it is of another problem. Local."""
    kept, words = newest(folder)
    if kept is None and words:
        raise InputError(f"{'; '.join(words)}. There is no other checkpoint. Remove the folder to start anew")
    if kept is not None and (differing := differences(kept.problem, problem)):
        remedy = "Give the same data and options as before, or name another folder"
        raise InputError(f"{kept.path}: is the checkpoint of another problem ({'; '.join(differing)}). {remedy}")
    return kept, words


def exists(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint, damaged or not."""
    return any((folder / name).exists() for name in (NEWEST, OLDER))


def require_none(folder: Path) -> None:
    """Raise InputError if the folder holds a checkpoint, which a run from the beginning would replace. Local."""
    if exists(folder):
        remedy = f"give {option('resume')} to continue its run, or remove the folder"
        raise InputError(f"{folder}: holds a checkpoint; {remedy}")


def read(path: Path) -> Checkpoint:
    """Read a checkpoint through. Raises FileNotFoundError if there is none, InputError if it is damaged."""
    try:
        size = look_at(path).st_size
        with open_zip(path) as archive:
            # It is not compressed. So no member is larger than the file, and none is there twice.
            if sum(member.file_size for member in archive.infolist()) > size:
                raise InputError(f"{path}: damaged: its arrays claim to be larger than the file")
            if damaged := archive.testzip():
                raise InputError(f"{path}: damaged: the checksum of {damaged} is wrong")
            info = json.loads(archive.read(INFO))
            if info["format"] != FORMAT:
                raise InputError(f"{path}: not a checkpoint of distsms")
            if info["version"] != VERSION:
                other = f"{path}: written by {'a newer' if info['version'] > VERSION else 'an older'} distsms"
                raise InputError(f"{other} (checkpoint version {info['version']}; this one reads {VERSION})")
            shapes = {name: tuple(shape) for name, shape in info["shapes"].items()}
            for name, shape in shapes.items():
                with archive.open(f"{name}.npy") as member:
                    possible = len(shape) in (1, 2) and min(shape) >= 0 and shape[0] <= size  # rows may be empty
                    whole = _read_header(member) == shape and possible
                    if not whole or archive.getinfo(f"{name}.npy").file_size != member.tell() + 8 * math.prod(shape):
                        raise InputError(f"{path}: damaged: {name} is not of the size it should be")
        return Checkpoint(path, dict(info["problem"]), dict(info["numbers"]), shapes)
    except FileNotFoundError:
        raise
    except (OSError, *DAMAGED) as error:
        raise InputError(f"{path}: damaged, or not a checkpoint: {error}") from error


def _read_header(member: IO[bytes]) -> tuple[int, ...]:
    """Return the shape of the array in an open member, and leave the member at the array's first number."""
    np.lib.format.read_magic(member)
    shape, by_columns, kind = np.lib.format.read_array_header_1_0(member)
    if by_columns or kind != np.float64:
        raise ValueError("its numbers are not float64 in row-major order")
    return tuple(shape)


@dataclass(frozen=True)
class CheckpointWriter:
    """Writes snapshots of a run into its checkpoint folder."""

    folder: Path  # the checkpoint folder
    problem: Mapping[str, Any]  # what must be the same in a run that is resumed from a checkpoint, ready for JSON
    about: Mapping[str, Any]  # more for people to read, such as the settings
    vectors: Vectors  # where the run's vectors live

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a snapshot, or warn and go on. **Collective** among the ranks that run the solver."""
        arrays = {f"table.{name}": Rows.of(table) for name, table in snapshot.tables.items()}
        for name, vectors in snapshot.vectors.items():
            slices = list(vectors)
            rows = (self.vectors.gather(part) for part in slices)
            arrays[f"vector.{name}"] = Rows((len(slices), self.vectors.p), rows)  # type: ignore[arg-type]
        if self.vectors.comm.is_root:
            try:
                save(self.folder, self.problem, {**snapshot.numbers, "about": self.about}, arrays)
            except InputError as error:
                print(f"warning: no checkpoint was written: {error}; the run continues", file=sys.stderr, flush=True)
        # The other ranks take part in gathering here, and so must the root if writing has failed.
        for array in arrays.values():
            for _ in array.rows:
                pass


def opened(
    folder: Path, problem: Mapping[str, Any], resume: bool, closing: contextlib.ExitStack
) -> tuple[Checkpoint | None, list[str]]:
    """Lock the checkpoint folder until `closing`; return what is to be resumed, or None, and lines. On the root."""
    closing.enter_context(files.exclusive(folder))
    files.remove_partial(folder)
    for name in (NEWEST, OLDER):
        files.require_regular(folder / name)
    if not resume:
        require_none(folder)
        return None, []
    kept, words = load(folder, problem)
    if kept is None:
        return None, [f"resume    {folder} has no checkpoint: the run starts from the beginning"]
    if words:
        # Move the undamaged checkpoint to the newest place. Otherwise the next one would replace it by the damaged one.
        os.replace(kept.path, newest := folder / NEWEST)
        kept = replace(kept, path=newest)
    numbers = kept.numbers
    words = [f"warning   {damage}; taking the older one" for damage in words]
    so_far = f"evaluation {numbers['count']}, {numbers['seconds']:.2f} s, best J {numbers['best.J']:.8f}"
    return kept, [*words, f"resume    {kept.path}: {so_far}, lower bound {numbers['certificate.lower_bound']:.8f}"]


def restored(kept: Checkpoint | None, vectors: Vectors) -> Snapshot | None:
    """Return the snapshot of the root's checkpoint with slices of vectors, read once, or None. **Collective.**"""
    shapes = vectors.comm.bcast(kept and kept.shapes)
    if shapes is None:
        return None
    numbers = vectors.comm.bcast(kept and kept.numbers)
    tables: dict[str, Any] = {}
    slices: dict[str, Any] = {}
    for name, shape in shapes.items():
        kind, _, key = name.partition(".")
        if kind == "table":
            tables[key] = vectors.comm.broadcast(kept.array(name) if kept else np.empty(shape))
        else:
            rows: Iterable[Floats | None] = kept.rows(name) if kept else [None] * shape[0]
            slices[key] = map(vectors.scatter, rows)
    return Snapshot(numbers, tables, slices)
