"""On small data, check the logistic regression of a baseline: scikit-learn has to find the same minimum."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.measures import LOGISTIC, Measure
from distsms.optim.settings import Settings
from distsms.selection.baseline import FoldedRows
from distsms.selection.competitors import is_installed, scikit_agrees
from distsms.selection.method_results import MethodResult
from distsms.selection.path import SMALL


def check(results: Sequence[MethodResult], rows: FoldedRows, trained: str, settings: Settings) -> list[str]:
    """Return a sentence for each logistic regression of the results; none for large data, or without scikit-learn.

    The first fold's training rows are fitted again, with the lambda that was chosen for this fold. The sentence is a
    warning if the two minima differ.

    Parameters
    ----------
    results : sequence of MethodResult
        The results of all methods.
    rows : FoldedRows
        The rows of the baseline.
    trained : str
        The measure that the baseline trains for.
    settings : Settings
        The settings of the fits, except lambda.
    """
    if rows.X is None or len(rows.y) + getattr(rows.X, "nnz", rows.X.size) > SMALL or not is_installed("sklearn"):
        return []
    task, sentences = rows.task(1, trained, settings), []
    for result in results:
        if result.method in LOGISTIC:
            agrees, said = scikit_agrees(task, Measure.parse(result.method), result.chosen[0])
            sentences.append(f"{'' if agrees else 'Warning: '}{said}, on the training rows of fold 1.")
    return sentences
