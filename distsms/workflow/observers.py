"""What receives the progress of long work. Importing this loads nothing, so that the command line may do it early."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distsms.shards.dataset import DataBlock
    from distsms.training.plan import Plan
    from distsms.workflow.choice import Point
    from distsms.workflow.path_result import PathResult, PathTask
    from distsms.workflow.several_paths import Setting


class PathObserver:
    """Receives what `run_path` reports. Override its methods: each rank calls them, unless they say otherwise."""

    def comparing(self, setting: Setting, name: str, number: int, of: int) -> None:
        """Called before each of several paths: which setting differs, its value, and the number of the path."""

    def chose_solver(self, solver: str, why: str) -> None:
        """Called with the solver, and why it is not the usual one; "" if it is."""

    def began(self, task: PathTask) -> None:
        """Called when all checks are made that need no rows."""

    def making_features(self, step: str, unit: str, done: float, of: float) -> None:
        """Called as features are made: what is done, in which unit, how much of it, and of how much."""

    def made_features(self, text: str) -> None:
        """Called on the root with a line on the features of a fold."""

    def planned(self, plan: Plan) -> None:
        """Called before the rows are loaded."""

    def loaded(self, block: DataBlock, rows_on_all_ranks: bool) -> None:
        """Called when the rows are loaded, unless each fold has its own. May be collective."""

    def training(self, done: int, of: int, models_of_rank: bool) -> None:
        """Called before the first training: how many models are there, of how many, of this rank or of all."""

    def extended(self, lam: float) -> None:
        """Called on the root before a lambda beyond an end of those so far is tried."""

    def kept(self, point: Point, done: int, of: int) -> None:
        """Called on the rank that trained a model when it is kept: the outcome, and how many models are there."""

    def trained(self) -> None:
        """Called when the last model is trained."""

    def deciding(self, lam: float) -> None:
        """Called before the models of the folds are trained again, for a threshold and probabilities."""

    def ended(self, result: PathResult) -> None:
        """Called at the end of each path."""

    def compared(self, result: PathResult) -> None:
        """Called at the end of several paths."""
