"""Faults that are put into the package, to see whether the search for schedules finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def _plant_missing_allreduce() -> tuple[Any, str, Any]:
    from distsms.parallel.mpi import MPICommunicator

    real = MPICommunicator._reduce

    def left_out(self: Any, name: str, operation: Any, array: Any) -> Any:
        return array if self.rank == 1 and len(array) == 3 else real(self, name, operation, array)

    return MPICommunicator, "_reduce", left_out


def _plant_missing_barrier() -> tuple[Any, str, Any]:
    from distsms.base.communicator import Communicator as Base

    @contextlib.contextmanager
    def apart(self: Any) -> Iterator[None]:
        yield

    return Base, "fail_together", apart


def _plant_no_flush() -> tuple[Any, str, Any]:
    from distsms.base.files import OutputFile

    real = OutputFile.finish
    return OutputFile, "finish", lambda self, durable=True: real(self, False)


def _plant_other_manifest() -> tuple[Any, str, Any]:
    from distsms.shards import manifest

    return manifest, "note", lambda path, digest: None


PLANTED: dict[str, Callable[[], tuple[Any, str, Any]]] = {
    "allreduce": _plant_missing_allreduce,
    "barrier": _plant_missing_barrier,
    "flush": _plant_no_flush,
    "manifest": _plant_other_manifest,
}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Put a fault into the package."""
    if name is None:
        yield
        return
    target, attribute, value = PLANTED[name]()
    old = getattr(target, attribute)
    setattr(target, attribute, value)
    try:
        yield
    finally:
        setattr(target, attribute, old)
