"""`distsms path` with several BETA of pauc, l1 or features: a path for each of them, and the best model of all.

Several BETA are compared with ROCArea, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS, InputError
from distsms.base.measures import Measure

if TYPE_CHECKING:
    from distsms.base.runstore import ResumableStore
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.workflow.path_store import PathStore
    from distsms.workflow.several_paths import Setting


def measures(names: str) -> list[str]:
    """Return the measures to train for, from the largest BETA on. The first is ROCArea, whose BETA is 1."""
    betas = {Measure.parse(name).max_fpr: name for name in names.split(",")}
    falling = sorted((beta for beta in betas if beta and beta < 1), reverse=True)
    return ["rocarea", *(betas[beta] for beta in falling)]


def paths_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the options of each path, by the name of its folder; one if there are one BETA, one l1, one features."""
    if "," in args.measure:
        return {measure: {"measure": measure} for measure in measures(args.measure)}
    if len(args.candidates) > 1:
        return {candidate.folder: {"candidate": candidate} for candidate in args.candidates}
    return {f"{l1:g}": {"l1": l1} for l1 in args.l1s}


def run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: ExitStack) -> int:
    """Solve a path for each value of the setting, and compare them. **Collective.** Return the exit code."""
    from distsms.base import files
    from distsms.cli import path_run
    from distsms.cli.options import speaker
    from distsms.features.build import refuse_codes
    from distsms.models import inputs
    from distsms.shards import dataset
    from distsms.workflow.path_store import PathStore
    from distsms.workflow.several_paths import BETA, FEATURES, L1, BetaStore, FeaturesStore, L1Store

    say, wanted, codes = speaker(comm.is_root and not args.quiet), paths_of(args), dict[str, int]()
    held.callback(say.close)
    kinds: dict[Setting, type[ResumableStore]] = {BETA: BetaStore, L1: L1Store, FEATURES: FeaturesStore}
    setting = BETA if "," in args.measure else FEATURES if len(args.candidates) > 1 else L1
    store, end = kinds[setting](args.output), time.monotonic() + args.time_limit
    with comm.fail_together():
        manifest = dataset.read_manifest(args.data)
        if ("," in args.measure) + (len(args.l1s) > 1) + (len(args.candidates) > 1) > 1:
            raise InputError(
                "several BETA, several l1 and several features make too many paths: give several of one of them only",
                everywhere=True,
            )
        if setting is not BETA and not args.folds:
            raise InputError(
                f"several {setting.name} are compared on held-out rows: give at least 2 --folds", everywhere=True
            )
        if setting is FEATURES:
            refuse_codes(manifest)
        if setting is BETA and (args.select is None or not args.folds):
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
            identity |= {"measure": args.measure} if setting is not BETA else {}
            identity |= {"l1": args.l1} if setting is FEATURES else {}
            store.open(identity)
    before: PathStore | None = None
    for number, (name, options) in enumerate(wanted.items(), 1):
        what = name if setting is BETA else f"{setting.name} {name}"
        say(f"{'' if number == 1 else chr(10)}--- {number} of {len(wanted)}: {what}\n")
        path = PathStore(store.path / store.parts / name)
        left = max(end - time.monotonic(), 1e-3)
        own = vars(args) | options | {"output": str(path.path), "no_check": True, "time_limit": left, "before": before}
        with ExitStack() as of_path:
            codes[name] = path_run.run(argparse.Namespace(**own), comm, signals, path, of_path)
        if codes[name] == EXIT_REQUEUE:
            return EXIT_REQUEUE
        before = path if setting is L1 else None
    code = EXIT_OK
    with comm.fail_together():
        if comm.is_root:
            code = _conclude(args, setting, identity, store, codes, say)
    code = comm.bcast(code)
    say.close()
    comm.barrier()
    return code


def _conclude(
    args: argparse.Namespace,
    setting: Setting,
    identity: dict[str, Any],
    store: ResumableStore,
    codes: dict[str, int],
    say: Any,
) -> int:
    """Print the comparison, write the best model and betas.json or l1.json, and return the exit code. On the root."""
    from dataclasses import replace

    import numpy as np

    from distsms.base.formatting import format_table
    from distsms.models import model
    from distsms.workflow.choice import chooser
    from distsms.workflow.path_store import MODEL, PathStore
    from distsms.workflow.several_paths import BETA, FEATURES, L1, compare

    paths = {name: PathStore(store.path / store.parts / name) for name in codes}
    points = {name: path.points() for name, path in paths.items()}
    found = compare(points, chooser(args.measure, args.select), args.rule, setting)
    if found is None:
        return max(codes.values())
    if setting is L1:
        chosen = {name: paths[name].model(choice.chosen.lam) for name, choice in found.choices.items()}
        found = found._replace(nonzeros={name: int(np.count_nonzero(own.w)) for name, own in chosen.items()})
    evaluations = {name: sum(point.result["evaluations"] for point in own) for name, own in points.items()}
    say(f"\n--- all\n\n{format_table(*found.table(evaluations))}\n")
    for sentence in found.sentences():
        say(sentence)
    best = model.load(paths[found.best].path / MODEL)
    key, each = {BETA: ("betas", "measure"), L1: ("l1_path", "l1"), FEATURES: ("features_path", "candidate")}[setting]
    model.save(store.path / MODEL, replace(best, info=best.info | {key: found.as_json()}))
    store.describe(identity, **found.as_json(), evaluations=evaluations)
    say(f"  model     {store.path / MODEL}")
    say(f"  paths     {store.path / store.parts}, one for each {each}; the comparison is in {store.identity}")
    if codes[found.best] == EXIT_VACUOUS and args.quiet:
        print(f"distsms path: warning: no {setting.name} gives a model that ranks better than chance", file=sys.stderr)
    others = [code for code in codes.values() if code not in (EXIT_OK, EXIT_VACUOUS)]
    return max(others) if others else codes[found.best]
