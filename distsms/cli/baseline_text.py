"""What `distsms baseline` prints: what is compared, how far the fits are, and the tables with the conclusions."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.base.formatting import format_bytes
from distsms.cli.columns import format_columns
from distsms.cli.features_text import FoldsNarrator
from distsms.cli.options import rows_held
from distsms.cli.progress import usage_line
from distsms.shards.column_options import ColumnReport
from distsms.shards.dataset import DataBlock
from distsms.workflow import baseline_text
from distsms.workflow.baseline import BaselineObserver, FitProgress
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.baseline_plan import ENTRY_BYTES, MANY_COLUMNS, BaselinePlan
from distsms.workflow.competitors import METHODS
from distsms.workflow.method_results import WARNING, Baseline


class BaselineNarrator(FoldsNarrator, BaselineObserver):
    """Prints what a baseline tells, and its results."""

    converting = FoldsNarrator.progress
    told = FoldsNarrator.made_features

    def surveyed(self, reports: Sequence[ColumnReport]) -> None:
        self.told(format_columns(reports))

    def cautioned(self, warning: str) -> None:
        self._say.warn(warning)

    def planned(self, plan: BaselinePlan) -> None:
        self._progress.close()
        if not self._speaks:
            return
        say, manifest = self._say, plan.manifest
        problem, fits = plan.problem, plan.all_fits
        names = ", ".join(self._args.data)
        say(f"data      {names}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive")
        lambdas = ", ".join(f"{lam:g}" for lam in problem.lambdas)
        say(f"problem   {problem.measure}; {problem.folds} folds by {problem.folds_by}; lambda {lambdas}")
        say(f"fits      {'at most ' * plan.halves}{len(fits)}; {plan.kept} of them are kept from an earlier start")
        if plan.halves:
            say("          those of lambdas that quick trials on the other folds leave; --thorough makes all of them")
        for each in plan.left_out:
            say(f"left out  {', '.join(each.methods)}: {each.why}")
        for name in [name for name in plan.methods if not METHODS[name].linear]:
            tries = f"{plan.tree_fits} setting{'s' * (plan.tree_fits > 1)} tried for each fold, on its training rows"
            say(f"{name:9} {METHODS[name].about}: {tries}; then the best is fitted")
        if manifest.coded and plan.alone:
            nonzeros = f"up to {manifest.explicit:,} nonzeros in place of {manifest.describe_entries()}"
            size = format_bytes(ENTRY_BYTES * manifest.explicit)
            say(f"matrix    the other libraries need {nonzeros}: about {size} on each rank")
        if manifest.p >= MANY_COLUMNS and not all(METHODS[name].linear for name in plan.alone):
            rest = "which may take long; --no-trees leaves them out, and --tree-fits 2 tries fewer settings"
            say(f"hint      trees try all {manifest.p:,} columns at each split, {rest}")
        say("" if plan.holds_rows and (plan.small or not plan.by_distsms) else "rows      distributed over the ranks")

    def loaded(self, block: DataBlock) -> None:
        for line in [*rows_held(block, self._comm, self._args.memory, whole=False), ""]:
            self._say(line)

    def fitting(self, progress: FitProgress) -> None:
        unit = "fits of this rank" if progress.shared and self._comm.size > 1 else "fits"
        folds = ", all folds side by side" if progress.fold is None else f" {progress.setting}, fold {progress.fold}"
        self._progress.of_task("fitting", unit, progress.done, progress.total, f"{progress.method}{folds}")

    def fitted(self) -> None:
        self._progress.close()
        self._progress.begin("", "")

    def conclude(self, result: Baseline) -> None:
        """Print the tables and the sentences, or that the run was stopped."""
        say, store = self._say, BaselineStore(result.folder)
        if result.stopped:
            say("\nstopped; finished fits are kept. To continue, give the same command line again")
            return
        say(f"\n{baseline_text.table(result.methods, result.select)}\n")
        if result.head:
            say("head of the ranking; for each measure, all methods have the settings that are best by it")
            say(f"{baseline_text.head_table(result.head)}\n")
        for sentence in result.sentences:
            say(f"warning   {sentence.removeprefix(WARNING)}" if sentence.startswith(WARNING) else sentence)
        if result.effort:
            say(f"\n{baseline_text.describe_effort(result.effort, result.methods, result.select)}")
        say(f"The results are in {store.identity}, and each fit is beside it in {store.parts}/")
        say(usage_line(result.usage).removesuffix(" (--usage shows more)"))
