"""The end of `distsms path`: print the table and the choice of lambda, and write the model and path.json."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from distsms.errors import EXIT_REQUEUE, EXIT_VACUOUS

if TYPE_CHECKING:
    from distsms.cli.terminal import Speaker
    from distsms.selection.path import Run
    from distsms.selection.path_store import PathStore
    from distsms.selection.quick_rocarea import Comparison


def conclude(
    args: argparse.Namespace,
    identity: dict[str, Any],
    folder: PathStore,
    found: Run,
    seconds: float,
    warnings: list[str],
    compared: Comparison | None,
    say: Speaker,
    target: str,
) -> int:
    """Print the table and the choice, write the model and path.json, and return the exit code. On the root."""
    from collections import Counter
    from dataclasses import replace

    from distsms.inference import model
    from distsms.optim.result import Status
    from distsms.selection import choice as choosing
    from distsms.selection import folds, left_out, path_text
    from distsms.selection.path_store import MODEL
    from distsms.utils import formatting

    points, by = folder.points(), choosing.chooser(args.measure, args.select)
    ended = Counter(str(point.result["status"]) for point in points)
    models = ", ".join(f"{count} {status}" for status, count in ended.most_common())
    say(
        f"\n{found.evaluations} evaluations in {found.passes} passes over the data, {seconds:.2f} s; models: {models}\n"
    )
    curve = choosing.means(points, by)
    faults = choosing.faults(points)
    chosen = choosing.choose(curve, args.rule, faults) if curve and not found.stopped else None
    say(formatting.format_table(*path_text.table(points, by, chosen)))
    if not_trained := left_out.describe(found.left_out, target):
        say(f"\n{not_trained}")
    if found.stopped:
        say("\nstopped; finished points are kept. To continue, give the same command line again")
        return EXIT_REQUEUE
    codes = [Status[point.result["status"].upper()].exit_code for point in points]
    results: dict[str, Any] = {"points": [point.as_json() for point in points], "warnings": warnings}
    results["left_out"] = [{"lam": lam, "gain": gain} for lam, gain in found.left_out.items()]
    if chosen:
        results |= {"means": [mean._asdict() for mean in curve], "rule": args.rule, "select": by}
        results |= {name: mean and mean._asdict() for name, mean in chosen._asdict().items()}
        results["faults"] = [{"lam": lam, "why": why} for lam, why in faults.items()]
        if interval := choosing.expected(points, by, args.rule):
            results |= {"interval": interval.as_json()}
        best = folder.model(chosen.chosen.lam)
        origin = {name: identity[name] for name in ("folds", "folds_by", "seed")}
        origin |= {"rule": args.rule, "select": by, "held_out": chosen.chosen._asdict()}
        say(path_text.choice(by, chosen, curve, points, args.rule))
        if note := folds.CAVEATS.get(identity["folds_by"]):
            say(f"  note      {note}")
        say(f"  model     {folder.path / MODEL}")
        on_model = list[str]()
        unseen = choosing.why_chance(points)
        if chance := path_text.why_chance(points, chosen) or unseen:
            codes.append(EXIT_VACUOUS)
            where = " on rows that it has not seen" if chance == unseen else ""
            on_model.append(f"This model ranks no better than chance{where}: {chance}.")
        if compared and (better := compared.warning(by, bool(chance))):
            on_model.append(better)
        found_of_it = {"path": origin, "vacuous": bool(chance), "warnings": on_model}
        model.save(folder.path / MODEL, replace(best, info=best.info | found_of_it))
        warnings += on_model
        for warning in on_model:
            say.warn(warning, "red" if chance else "yellow")
        for warning in on_model if args.quiet else []:
            print(f"distsms path: warning: {warning}", file=sys.stderr)
        results |= {"chance": chance, "quick_rocarea": compared and compared.as_json()}
    if warning := path_text.nothing(args.measure, points):
        say(warning)
    folder.describe(identity, **results)
    say(f"  points    {folder.path / 'path.json'}, and the model of each lambda beside it in points/")
    return max(codes, key=lambda code: (code != EXIT_VACUOUS, code) if code else (False, 0))
