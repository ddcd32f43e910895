"""The command `distsms report`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK
from distsms.cli import evaluate, types
from distsms.cli.terminal import Speaker, print_warning
from distsms.cli.types import MODEL, THREADS, add_old_names, add_options

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

USAGE = "MODEL --test DATA|FILE [options]"
EPILOG = """\
The report is a model card in one HTML file that loads nothing from elsewhere, in light or dark as the reader prefers.
All numbers are exact over all rows of all ranks; only the drawn curves leave out points. It needs matplotlib (pip
install 'distsms[plot]').

examples:
  distsms report model.h5 --test data/test --output report.html
  mpirun -n 8 distsms report model.h5 --test data/test --feature-names names.txt --figures figures
  distsms report model.h5 --test data/test --at "precision>=0.9" --at top=1%
"""

OPTIONS = f"""\
{MODEL}
--test DATA  A data set made by `distsms shard`, or a file of a format that it reads.
--output FILE  The HTML file to write (default: %(default)s).
--figures FOLDER  Also write each figure as PNG and SVG into this folder.
--feature-names FILE  A text file with the names of the columns, one in each line (default: the names of the table).
--trace FILE  The trace of the training, to be shown (default: where the model says that it is, or beside the model).
--path FOLDER  A folder of `distsms path`, whose lambdas are shown (default: the folder of the model, if it is one).
--baseline FOLDER  A folder of `distsms baseline`, to be shown.
--card FILE  A TOML file with what only the owner of the model knows, as in intended_use = "..."; the page names the
    headings that lack it.
{evaluate.JUDGING.format(shown=" on these rows, and mark it on the curves", more="")}
{evaluate.READING}
{THREADS}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_command: dict[str, Any] = {"--test": {"required": True}, "--output": {"default": "report.html"}}
    add_options(parser, OPTIONS, evaluate.KEYWORDS | of_command)
    add_old_names(parser, on="test", out="output")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate the model on all ranks and write the report on the root. **Collective.**"""
    from distsms.page.report import report
    from distsms.workflow.requests import ReportRequest

    measures, reading = evaluate.measuring(args)
    request = types.from_arguments(ReportRequest, args, data=args.test, measures=measures, reading=reading)
    written = report(request, comm)
    if comm.is_root:
        for note in written.notes:
            print_warning(note)
        print(f"{written.path}: {written.size / 1024:.0f} KiB")
        if args.figures:
            print(f"{args.figures}: {len(written.figures)} files")
        Speaker(bool(written.warnings)).close(written.warnings)
    return EXIT_OK
