"""The command `distsms verify`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.cli.evaluate import KEYWORDS, READING
from distsms.cli.types import MODEL, THREADS, add_options, from_arguments

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

USAGE = "MODEL DATA|FILE [--certificate FILE] [options]"
EPILOG = """\
J is computed anew from the model and the rows, which must be those of the training, and so are the measures; both are
compared with what the model says, and so are all checksums. With a certificate, a lower bound on the J of all w is
derived from the certificate and the rows, too. Nothing of the training has to be believed then: the gap is the
difference. Whoever does not believe this program either takes scripts/verify_certificate.py, which needs NumPy and h5py
alone, or writes another one; the manual's page on the certificate says how.

exit codes:
  0 everything is as the model says   1 something is not, or the files do not belong together   2 usage

examples:
  distsms train data/train --measure prbep --lambda 1e-4 --certificate proof.h5
  distsms verify model.h5 data/train --certificate proof.h5
  mpirun -n 8 distsms verify model.h5 data/train
"""

OPTIONS = f"""\
{MODEL}
data DATA|FILE  The rows that it was trained on, in the same order: a data set, or a file.
--certificate FILE  What `distsms train --certificate` has written (default: none).
{READING}
--json  Print one JSON object.
{THREADS}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, KEYWORDS)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Check the model on all ranks, and print on the root what was found. **Collective.**"""
    from distsms.base.formatting import format_objective, to_json
    from distsms.base.measures import display_name
    from distsms.cli.terminal import Speaker
    from distsms.models.inputs import InputOptions
    from distsms.workflow.requests import VerifyRequest
    from distsms.workflow.verify import verify

    verified = verify(VerifyRequest(args.model, args.data, args.certificate, from_arguments(InputOptions, args)), comm)
    if comm.is_root and args.json:
        print(to_json(verified.to_dict()))
    elif comm.is_root:
        say, of_model = Speaker(True), verified.J_of_model
        written = "" if of_model is None else f"   the model says {format_objective(of_model)}"
        say(f"J            {format_objective(verified.J)}{written}")
        if verified.lower_bound is not None and verified.gap is not None:
            say(f"lower bound  {format_objective(verified.lower_bound)}   derived from {verified.certificate}")
            say(f"gap          {verified.gap:.3g}: the J of no w is smaller than that of the model by more")
        for name, value in verified.measures.items():
            say(f"{display_name(name):<12} {value:.6f}")
        for note in verified.notes:
            say(f"note         {note}")
        say.close(verified.problems, "red")
    return verified.exit_code
