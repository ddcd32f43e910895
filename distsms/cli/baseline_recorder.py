"""Keeps the fits of `distsms baseline` as they are finished, and shows how far a rank has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distsms.workflow.competitors import METHODS

if TYPE_CHECKING:
    from distsms.cli.progress import Progress
    from distsms.workflow.baseline import BaselineStore, Fit, FitSpec, Trial


class FitRecorder:
    """Stores the results of this rank's fits, and shows how many are done and which fit is being made."""

    def __init__(self, store: BaselineStore, count: int, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._done, self._count = 0, count

    def begin(self, spec: FitSpec) -> None:
        """Show what is about to be fitted."""
        setting = f"{spec.setting:g}"
        if not METHODS[spec.method].linear:
            setting = f"best of {setting}" if spec.best else f"try {setting}"
        self._progress(self._done, self._count, f"{spec.method} {setting}, fold {spec.fold}")

    def begin_method(self, spec: FitSpec) -> None:
        """Show which method is about to be fitted to all folds."""
        self._progress(self._done, self._count, f"{spec.method}, all folds side by side")

    def keep(self, result: Fit | Trial, scores: Any = None) -> None:
        """Keep the result of a fit."""
        self._store.keep(result, scores)
        self._done += 1

    def close(self) -> None:
        """End the display of progress."""
        self._progress.close()
