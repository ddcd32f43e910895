"""The files that are converted or scored: all ranks must see the same ones, since each of them reads a part."""

from __future__ import annotations

import os
from collections.abc import Sequence

from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils import common_files
from distsms.utils.files import FileState


def states(inputs: Sequence[str | os.PathLike[str]], *others: str | os.PathLike[str] | None) -> list[FileState]:
    """Return the state of the inputs and of other files with labels, ids or weights. Local.

    Of the others, None and names that are not those of files are left out. Raises InputError for a missing input.
    """
    return [
        FileState(path) for path in (*inputs, *(path for path in others if path is not None and os.path.isfile(path)))
    ]


def require_common(files: Sequence[FileState], comm: Communicator) -> None:
    """Raise InputError on all ranks unless they see the same files. **Collective.**

    Where a file was not written at the same time for all ranks, it is a copy, and all of it is read and compared.
    """
    of_ranks = comm.allgather([file.seen for file in files])
    with comm.fail_together():
        for file, *seen in zip(files, *of_ranks, strict=True):
            if len({size for size, _, _ in seen}) > 1:  # then the ranks would divide the file differently
                raise InputError(f"{file.path}: is being written: its size is not the same on all ranks. Try again")
            if len(set(seen)) > 1:
                common_files.note_content(file.path)
