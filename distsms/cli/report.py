"""The command `distsms report`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK
from distsms.cli.evaluate import add_conditions, add_intervals, add_reading, measuring
from distsms.cli.terminal import Speaker
from distsms.cli.types import add_old_names, add_threads

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms report`."""
    parser.add_argument("model", metavar="MODEL", help="A model written by `distsms train`.")
    text = "A data set made by `distsms shard`, or a file of a format that it reads."
    parser.add_argument("--test", required=True, metavar="DATA", help=text)
    text = "The HTML file to write (default: %(default)s)."
    parser.add_argument("--output", default="report.html", metavar="FILE", help=text)
    parser.add_argument("--figures", metavar="FOLDER", help="Also write each figure as PNG and SVG into this folder.")
    text = "A text file with the names of the columns, one in each line (default: the names of the table)."
    parser.add_argument("--feature-names", metavar="FILE", help=text)
    text = "The trace of the training, to be shown (default: where the model says that it is, or beside the model)."
    parser.add_argument("--trace", metavar="FILE", help=text)
    text = "A folder of `distsms path`, whose lambdas are shown (default: the folder of the model, if it is one)."
    parser.add_argument("--path", metavar="FOLDER", help=text)
    parser.add_argument("--baseline", metavar="FOLDER", help="A folder of `distsms baseline`, to be shown.")
    text = (
        'A TOML file with what only the owner of the model knows, as in intended_use = "..."; the page names the'
        " headings that lack it."
    )
    parser.add_argument("--card", metavar="FILE", help=text)
    add_conditions(parser, " on these rows, and mark it on the curves")
    add_intervals(parser)
    add_reading(parser)
    add_threads(parser)
    add_old_names(parser, on="test", out="output")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate the model on all ranks and write the report on the root. **Collective.**"""
    from distsms.ingest.formats.registry import print_warning
    from distsms.page.report import report
    from distsms.workflow.requests import ReportRequest

    measures, reading = measuring(args)
    written = report(ReportRequest.of(vars(args), data=args.test, measures=measures, reading=reading), comm)
    if comm.is_root:
        for note in written.notes:
            print_warning(note)
        print(f"{written.path}: {written.size / 1024:.0f} KiB")
        if args.figures:
            print(f"{args.figures}: {len(written.figures)} files")
        Speaker(bool(written.warnings)).close(written.warnings)
    return EXIT_OK
