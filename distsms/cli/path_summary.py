"""What `distsms path` writes: each point, and at the end the table, the choice of lambda, the model and path.json."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_REQUEUE, EXIT_VACUOUS
from distsms.base.measures import Measure

if TYPE_CHECKING:
    from distsms.cli.progress import Progress
    from distsms.cli.terminal import Speaker
    from distsms.optim.result import Result
    from distsms.shards.manifest import Manifest
    from distsms.workflow.choice import Point
    from distsms.workflow.fold_features import FoldFeatures
    from distsms.workflow.path import Problem, Run
    from distsms.workflow.path_store import PathStore
    from distsms.workflow.rocarea_check import FoldComparison


class PointRecorder:
    """Writes each point into the folder, and shows how many points are done. It is called on the root only."""

    def __init__(
        self,
        args: argparse.Namespace,
        problem: Problem,
        manifest: Manifest,
        folder: PathStore,
        ranks: int,
        counts: tuple[int, int],
        progress: Progress,
        features: FoldFeatures | None = None,
    ) -> None:
        from distsms.training.task import Distribution
        from distsms.workflow.provenance import describe_data_set

        self._problem, self._manifest, self._folder, self._progress = problem, manifest, folder, progress
        self._features = features
        self._by = problem.select or problem.measure
        self._data = describe_data_set(manifest, args.data)
        self._distribution = Distribution(problem.ordering, problem.step)
        self._ranks = ranks
        self._count, self._of = counts  # how many points there are, and how many there will be

    def expect(self, points: int) -> None:
        """Add `points` to the number of points that will be made."""
        self._of += points

    def __call__(self, point: Point, result: Result) -> None:
        """Write a point and its model into the folder. `path.run` calls this as its argument `keep`."""
        from dataclasses import replace

        from distsms.matrix.augmented import split_bias
        from distsms.models import model
        from distsms.workflow import path_text
        from distsms.workflow.provenance import model_info, provenance

        measure, settings = Measure.parse(self._problem.measure), replace(self._problem.settings, lam=point.lam)
        w, bias = split_bias(result.w, self._problem.bias)
        numbers = bias, point.threshold, dict(point.training)
        info = model_info(
            measure, settings, result, self._distribution, self._ranks, *numbers, self._data, provenance()
        )
        trained_on = self._features.manifest(point.fold) if self._features else self._manifest
        self._folder.keep(point, model.from_training(w, info, trained_on))
        self._count += 1
        self._progress(self._count, self._of, path_text.line(point, self._by))


def chosen_lambda(args: argparse.Namespace, points: list[Point]) -> float | None:
    """Return the lambda that the rule of the command line chooses from the points; None if there is no choice."""
    from distsms.workflow import choice as choosing

    curve = choosing.means(points, choosing.chooser(args.measure, args.select))
    if not curve:
        return None
    return choosing.choose(curve, args.rule, choosing.faults(points), choosing.nonzeros(points)).chosen.lam


def conclude(
    args: argparse.Namespace,
    identity: dict[str, Any],
    folder: PathStore,
    found: Run,
    seconds: float,
    warnings: list[str],
    compared: FoldComparison | None,
    say: Speaker,
    target: str,
    weights: tuple[float, float] | None,
    decided: dict[str, Any] | None = None,
) -> int:
    """Print the table and the choice, write the model and path.json, and return the exit code. On the root.

    `weights` are those of the positive and of the negative rows, if they are known. `decided` is what the model's
    information gets from held-out folds: `distsms.workflow.decisions.findings`.
    """
    from collections import Counter
    from dataclasses import replace

    from distsms.base import formatting
    from distsms.models import model
    from distsms.models.decision_text import describe
    from distsms.optim.result import Status
    from distsms.workflow import choice as choosing
    from distsms.workflow import folds, path_text
    from distsms.workflow.advice import describe_constant
    from distsms.workflow.path_store import MODEL

    points, by = folder.points(), choosing.chooser(args.measure, args.select)
    ended = Counter(str(point.result["status"]) for point in points)
    models = ", ".join(f"{count} {status}" for status, count in ended.most_common())
    say(
        f"\n{found.evaluations} evaluations in {found.passes} passes over the data, {seconds:.2f} s; models: {models}\n"
    )
    curve = choosing.means(points, by)
    faults = choosing.faults(points)
    sizes = choosing.nonzeros(points)
    chosen = choosing.choose(curve, args.rule, faults, sizes) if curve and not found.stopped else None
    say(formatting.format_table(*path_text.table(points, by, chosen)))
    if not_trained := choosing.describe_left_out(found.left_out, target, args.measure, points, weights):
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
        say(path_text.describe_choice(by, chosen, curve, points, args.rule))
        if note := folds.CAVEATS.get(identity["folds_by"]):
            say(f"  note      {note}")
        for line in describe(decided or {}):
            say(line)
        say(f"  model     {folder.path / MODEL}")
        on_model = list[str]()
        unseen = choosing.why_chance(points)
        if chance := path_text.why_chance(points, chosen) or unseen:
            codes.append(EXIT_VACUOUS)
            where = " on rows that it has not seen" if chance == unseen else ""
            on_model.append(f"This model ranks no better than chance{where}: {chance}.")
        if compared and (better := compared.warning(by, bool(chance))):
            on_model.append(better)
        measure = Measure.parse(args.measure)
        if constant := describe_constant(measure, args.l1, measure.bias(args.bias), best.bias):
            on_model += [] if chance else [constant]
        if why := ((decided or {}).get("decision") or {}).get("why"):
            on_model.append(f"The model has no threshold for labels: {why}.")
        found_of_it = (decided or {}) | {"path": origin, "vacuous": bool(chance), "warnings": on_model}
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
