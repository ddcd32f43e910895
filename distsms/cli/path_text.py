"""What `distsms path` prints: what is trained, how it goes on, what was chosen, and how several paths compare."""

from __future__ import annotations

from collections import Counter

from distsms.base.errors import EXIT_VACUOUS
from distsms.base.formatting import format_table
from distsms.cli.features_text import FoldsNarrator
from distsms.cli.options import rows_held
from distsms.cli.terminal import print_warning
from distsms.models.decision_text import describe
from distsms.shards.dataset import DataBlock
from distsms.training.plan import Plan
from distsms.workflow import path_result
from distsms.workflow.choice import Point
from distsms.workflow.folds import CAVEATS
from distsms.workflow.path_result import L1, MODEL, PathResult, PathTask, Setting
from distsms.workflow.path_run import PathObserver


class PathNarrator(FoldsNarrator, PathObserver):
    """Prints what a path, or each of several, tells."""

    _task: PathTask
    _setting: Setting | None = None  # with several paths, what differs
    _number = 1  # of the path

    def comparing(self, setting: Setting, name: str, number: int, of: int) -> None:
        self._setting, self._number = setting, number
        self._say(f"{'' if number == 1 else chr(10)}--- {number} of {of}: {setting.describe(name)}\n")

    def began(self, task: PathTask) -> None:
        self._task = task
        request, manifest, problem = task.request, task.manifest, task.problem
        sizes = f"{manifest.n} rows, {manifest.p} columns, {manifest.describe_entries()}, {manifest.n_pos} positive"
        self._say(f"data      {request.data}: {sizes}")
        features, l1 = request.features[0], problem.settings.l1
        lambdas = ", ".join(f"{lam:g}" for lam in problem.lambdas)
        more = f"; l1 {l1:g}" * bool(l1) + f"; features {features.text}" * bool(features.options)
        gap = problem.settings.describe_target()
        self._say(f"problem   {problem.measure}; gap to prove: {gap}; lambda {lambdas}{more}")
        by = f" and {problem.folds} folds by {problem.folds_by}, {problem.at_once} at once" * bool(problem.folds)
        self._say(f"models    all rows{by}")
        if not (self._setting == L1 and self._number > 1):  # else the path before has said it
            for warning in task.warnings:
                self._say.warn(warning)
        if task.kept:
            self._say(f"resume    {task.folder}: {task.kept} points are there")

    def planned(self, plan: Plan) -> None:
        for line in plan.describe(self._args.usage):
            self._say(line)

    def loaded(self, block: DataBlock, rows_on_all_ranks: bool) -> None:
        if rows_on_all_ranks and self._args.usage:
            self._say("small     these data are so small that every rank holds all rows, and the ranks share the folds")
        for line in rows_held(block, self._comm, self._args.memory, self._args.usage):
            self._say(line)

    def training(self, done: int, of: int, models_of_rank: bool) -> None:
        unit = "models of this rank" if models_of_rank else "models"
        self._progress.begin("training", unit, done)

    def extended(self, lam: float) -> None:
        self._progress.close()
        self._say(f"extend    lambda {lam:g}, since the best lambda so far is at an end of those tried")

    def kept(self, point: Point, done: int, of: int) -> None:
        problem = self._task.problem
        self._progress(done, of, path_result.point_line(point, problem.select or problem.measure))

    def trained(self) -> None:
        self._progress.close()

    def deciding(self, lam: float) -> None:
        self._say(f"folds     the models of the folds are trained again at lambda {lam:g}, for --at and --calibrate")

    def ended(self, result: PathResult) -> None:
        for line in self._outcome(result):
            self._say(line)
        for warning in result.model_warnings:
            self._say.warn(warning, "red" if result.chance else "yellow")
            self._warn_quietly(warning)
        said = result.stopped or (result.chance and result.quick_rocarea)  # by a warning on the model, with advice
        if not said and (useless := path_result.describe_useless(result)):
            self._say(useless)
        self._say.close()

    def _outcome(self, result: PathResult) -> list[str]:
        """Return the table of a path and what was chosen."""
        points, task, manifest, problem = result.points, self._task, self._task.manifest, self._task.problem
        header, rows = path_result.points_table(result)
        statuses = Counter(str(point.result["status"]) for point in points)
        models = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
        took = f"{result.evaluations} evaluations in {result.passes} passes over the data, {result.seconds:.2f} s"
        lines = [f"\n{took}; models: {models}\n", format_table(header, rows)]
        classes = None if manifest.weights else (manifest.n_pos, manifest.n_neg)
        target = problem.settings.describe_target()
        if left_out := path_result.describe_left_out(result, target, classes):
            lines.append(f"\n{left_out}")
        if result.stopped:
            return [*lines, "\nstopped; finished points are kept. To continue, give the same command line again"]
        if result.choice is not None and result.model is not None:
            lines.append(path_result.describe_choice(result))
            if note := CAVEATS.get(problem.folds_by):
                lines.append(f"  note      {note}")
            lines += [*describe(result.model.info), f"  model     {task.folder / MODEL}"]
        return [*lines, f"  points    {task.folder / 'path.json'}, and the model of each lambda beside it in points/"]

    def compared(self, result: PathResult) -> None:
        setting, comparison, folder = self._setting, result.comparison, result.folder
        if setting is None or comparison is None or folder is None:
            return
        evaluations = {name: path.all_evaluations for name, path in result.paths.items()}
        header, rows = comparison.table(evaluations)
        self._say(f"\n--- all\n\n{format_table(header, rows)}\n")
        for sentence in comparison.sentences():
            self._say(sentence)
        self._say(f"  model     {folder / MODEL}")
        where = folder / f"{setting.kind}.json"
        self._say(f"  paths     {folder / 'paths'}, one for each {setting.each}; the comparison is in {where}")
        if result.paths[comparison.best].exit_code == EXIT_VACUOUS:
            self._warn_quietly(f"no {setting.name} gives a model that ranks better than chance")
        self._say.close()

    def _warn_quietly(self, warning: str) -> None:
        """Print a warning on the model with --quiet, too."""
        if self._args.quiet and self._comm.is_root:
            print_warning(warning, self._args.program)
