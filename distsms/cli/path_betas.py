"""`distsms path` with several BETA of pauc: a path for each of them and for ROCArea, and the best model of all."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from distsms.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS, InputError
from distsms.measures import Measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.selection.betas import BetaStore
    from distsms.selection.path_store import PathStore

    RunPath = Callable[[argparse.Namespace, Communicator, StopSignals, PathStore, ExitStack], int]


def measures(names: str) -> list[str]:
    """Return the measures to train for, from the largest BETA on. The first is ROCArea, whose BETA is 1."""
    betas = {Measure.parse(name).max_fpr: name for name in names.split(",")}
    falling = sorted((beta for beta in betas if beta and beta < 1), reverse=True)
    return ["rocarea", *(betas[beta] for beta in falling)]


def run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: ExitStack, run_path: RunPath) -> int:
    """Solve a path for each measure, and compare them. **Collective.** Return the exit code."""
    from distsms.cli.options import speaker
    from distsms.data.shards import dataset
    from distsms.inference import inputs
    from distsms.selection.betas import BetaStore
    from distsms.selection.path_store import PathStore
    from distsms.utils import files

    say, wanted, codes = speaker(comm.is_root and not args.quiet), measures(args.measure), dict[str, int]()
    held.callback(say.close)
    store, end = BetaStore(args.output), time.monotonic() + args.time_limit
    with comm.fail_together():
        manifest = dataset.read_manifest(args.data)
        if args.select is None or not args.folds:
            raise InputError(
                "several BETA are compared by one measure of the held-out rows: name it, such as --select tpr@fpr=0.01"
                " or --select pauc@0.01, and give at least 2 --folds",
                everywhere=True,
            )
        if comm.is_root:
            inputs.check_distinct(args.output, args.data)
            store.check()
            held.enter_context(files.exclusive(store.path))
            identity = {"data": {"path": args.data, "fingerprint": manifest.fingerprint}}
            identity |= {"select": args.select, "folds": args.folds, "seed": args.seed, "rule": args.rule}
            store.open(identity)
    for number, measure in enumerate(wanted, 1):
        say(f"{'' if number == 1 else chr(10)}--- {number} of {len(wanted)}: {measure}\n")
        path = store.path / store.parts / measure
        left = max(end - time.monotonic(), 1e-3)
        own = vars(args) | {"measure": measure, "output": str(path), "no_check": True, "time_limit": left}
        with ExitStack() as of_path:
            codes[measure] = run_path(argparse.Namespace(**own), comm, signals, PathStore(path), of_path)
        if codes[measure] == EXIT_REQUEUE:
            return EXIT_REQUEUE
    code = EXIT_OK
    with comm.fail_together():
        if comm.is_root:
            code = _conclude(args, identity, store, codes, say)
    code = comm.bcast(code)
    say.close()
    comm.barrier()
    return code


def _conclude(
    args: argparse.Namespace, identity: dict[str, Any], store: BetaStore, codes: dict[str, int], say: Any
) -> int:
    """Print the comparison, write the best model and betas.json, and return the exit code. On the root."""
    from dataclasses import replace

    from distsms.inference import model
    from distsms.selection.betas import compare
    from distsms.selection.path_store import MODEL, PathStore
    from distsms.utils.formatting import format_table

    paths = {measure: PathStore(store.path / store.parts / measure) for measure in codes}
    points = {measure: path.points() for measure, path in paths.items()}
    found = compare(points, args.select, args.rule)
    if found is None:
        return max(codes.values())
    evaluations = {name: sum(point.result["evaluations"] for point in own) for name, own in points.items()}
    say(f"\n--- all\n\n{format_table(*found.table(evaluations))}\n")
    for sentence in found.sentences():
        say(sentence)
    best = model.load(paths[found.best].path / MODEL)
    model.save(store.path / MODEL, replace(best, info=best.info | {"betas": found.as_json()}))
    store.describe(identity, **found.as_json(), evaluations=evaluations)
    say(f"  model     {store.path / MODEL}")
    say(f"  paths     {store.path / store.parts}, one for each measure; the comparison is in {store.identity}")
    if codes[found.best] == EXIT_VACUOUS and args.quiet:
        print("distsms path: warning: no BETA gives a model that ranks better than chance", file=sys.stderr)
    others = [code for code in codes.values() if code not in (EXIT_OK, EXIT_VACUOUS)]
    return max(others) if others else codes[found.best]
