"""Write a model as ONNX, as a model file of LIBLINEAR, or as CSV."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from distsms.errors import EXIT_OK

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

NAME = "export"
USAGE = "MODEL --to onnx|liblinear|csv [--output FILE]"
EPILOG = """\
The format onnx takes raw columns. If the training data were a table with columns of words, it has an input for each
column, (n, 1): strings, or doubles with NaN where a number is missing. Otherwise it has one input X, double (n,
columns). Its outputs are score, double, and label. Its metadata have the names of the columns. It needs the package
onnx (pip install 'distsms[export]').

The format liblinear is for the program `predict` of LIBLINEAR; its decision values are the scores less the threshold,
and it counts columns from 1. The format csv has lines name,value with the threshold, the bias and the weight of each
column, by the name in a table or counted from 0.

Scores are those of `distsms predict` up to rounding; labels are those of the training data. The command starts neither
MPI nor PETSc.

examples:
  distsms export model.h5 --to onnx --output model.onnx
  distsms export model.h5 --to csv | head
"""
FORMATS = ("onnx", "liblinear", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms export`."""
    parser.add_argument("model", metavar="MODEL", help="A model written by `distsms train`.")
    parser.add_argument("--to", choices=FORMATS, required=True, help="The format.")
    parser.add_argument(
        "--output", default="-", metavar="FILE", help="The file to write; - is standard output (default: -)."
    )
    parser.set_defaults(mpi=False)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Write the model in another format. One process."""
    from distsms.errors import InputError
    from distsms.inference import export, inputs, model

    read = model.load(args.model)
    if args.output != "-":
        model.check_writable(args.output)
        inputs.check_distinct(args.output, args.model)
        if model.is_model(args.output):
            raise InputError(f"{args.output}: is a model, which the export would replace; name another file")
    elif args.to == "onnx" and sys.stdout.isatty():
        raise InputError("the ONNX format is binary and cannot be shown on a terminal; name a file with --output")
    export.write(read, args.to, args.output, sys.stdout)
    return EXIT_OK
