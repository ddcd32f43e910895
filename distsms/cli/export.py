"""The command `distsms export`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK
from distsms.cli.types import MODEL, add_options

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

USAGE = "MODEL --to onnx|liblinear|csv [--output FILE] [--verbatim]"
EPILOG = """\
An ONNX model (--to onnx) takes the columns as they were before any encoding or normalization. If the training data
were a table with columns of words, the model has an input of shape (n, 1) for each column: strings, or doubles with NaN
where a number is missing. Otherwise it has one input X of doubles, of shape (n, columns). Its outputs are score, a
double, and label; and for models of --calibrate or for logistic probabilities, doubles of shape (n, 2): of the negative
and of the positive class. The graph also makes the bins, crosses and trees of `distsms features`. Its metadata have the
names of the columns. To write it, the package onnx is needed (pip install 'distsms[export]').

The format liblinear is for the program `predict` of LIBLINEAR. Its decision values are the scores minus the threshold,
and it counts columns from 1. With -b 1 it writes the probabilities of a model for logistic. The format csv has lines
name,value with the threshold, the bias and the weight of each column. Columns are called by their names in the table,
or by their numbers, counted from 0; `column N` is the column that the training data call N.

Scores are those of `distsms predict` up to rounding; labels are those of the training data. The command starts neither
MPI nor PETSc.

examples:
  distsms export model.h5 --to onnx --output model.onnx
  distsms export model.h5 --to csv | head
"""
FORMATS = ("onnx", "liblinear", "csv")
OPTIONS = f"""\
{MODEL}
--to  The format.
--output FILE  The file to write; - is standard output (default: -).
--verbatim  Write the names of columns to CSV as they are (default: with a leading ' where a spreadsheet would take them
    for formulas, and with escapes such as \\x1b for what a terminal would act on).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {"--to": {"choices": FORMATS, "required": True}, "--output": {"default": "-"}}
    add_options(parser, OPTIONS, others)
    parser.set_defaults(mpi=False)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Write the model in another format. One process."""
    from distsms.base.errors import InputError
    from distsms.base.files import check_writable
    from distsms.models import export, inputs, model

    read = model.load(args.model)
    if args.output != "-":
        check_writable(args.output)
        inputs.check_distinct(args.output, args.model)
        if model.is_model(args.output):
            raise InputError(f"{args.output}: is a model, which the export would replace; name another file")
    elif args.to == "onnx" and sys.stdout.isatty():
        raise InputError("the ONNX format is binary and cannot be shown on a terminal; name a file with --output")
    if note := export.about_probabilities(read, args.to):
        print(f"distsms export: note: {note}", file=sys.stderr)
    export.write(read, args.to, args.output, sys.stdout, args.verbatim)
    return EXIT_OK
