"""Exit codes, and the exceptions for errors that the user can correct: their messages say where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distsms.base.wording import Message, in_python

# Exit codes of the program; the manual has a page on them.
EXIT_OK = 0  # train: the gap is proved to be below the target
EXIT_ERROR = 1  # bad input, or a failure on some rank
EXIT_USAGE = 2  # the command line is wrong (argparse's own code)
EXIT_FLOOR = 3  # train: a fixed smoothing width (--c-mu) keeps the gap above the target
EXIT_LIMIT = 4  # train: --max-evaluations was reached first
EXIT_STALLED = 5  # train: no further progress, or rounding errors too large for the target
EXIT_NONFINITE = 6  # train: the objective became NaN or infinite
EXIT_VACUOUS = 8  # train, path: the gap is proved, and the model ranks no better than chance
EXIT_REQUEUE = 75  # train: stopped by a signal or --time-limit; the same command continues the run
EXIT_INTERRUPTED = 130  # Ctrl-C; in train, Ctrl-C twice
EXIT_KILLED = 137  # a rank was killed: the code that launchers return, too


class DistsmsError(Exception):
    """The base class of the errors that the program shows as one message, without a traceback.

    Parameters
    ----------
    message : str
        What happened, where, and what to do.
    everywhere : bool, optional
        Whether the same error is raised on every rank. If so, only the root reports it, and no rank waits for the
        others. If not, the program stops the other ranks.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, everywhere: bool = False) -> None:
        super().__init__(Message(message))
        self.everywhere = everywhere

    @property
    def message(self) -> Message:
        """The message, which knows the options in it."""
        return self.args[0]  # type: ignore[no-any-return]


class InputError(DistsmsError):
    """A file or an argument cannot be used. The message names the file (and line, row or column) and the remedy."""


class StoppedError(DistsmsError):
    """A run was asked to stop before it had anything to keep."""

    exit_code = EXIT_REQUEUE


class ModelWarning(UserWarning):
    """A model was trained as requested, but is hardly useful or useless. The message says what to use instead."""


class ColumnWarning(ModelWarning):
    """Columns of a table were left out, or may mean something else than they were taken for."""


class LaunchError(DistsmsError):
    """The processes do not form the MPI job that the launcher was meant to start."""


@contextlib.contextmanager
def speaking_python() -> Iterator[None]:
    """In the messages of InputErrors, name the options of Python rather than those of commands."""
    try:
        yield
    except InputError as error:
        raise InputError(in_python(error.message), error.everywhere) from None  # one traceback, of the user's call
