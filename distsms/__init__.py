"""Linear models that directly optimize ROCArea or PRBEP, distributed over MPI ranks, with a proved gap.

`SMSClassifier` is the scikit-learn estimator (`distsms.estimator`); `train`, `evaluate`, `predict`, `load_model` and
`save_model` work over all ranks of a communicator (`distsms.api`); `ClassMoments` trains for `normal-auc` on rows that
arrive bit by bit (`distsms.inference.class_moments`). Importing the package loads none of these, and starts neither MPI
nor PETSc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distsms._version import __version__ as __version__

__all__ = ["ClassMoments", "SMSClassifier", "evaluate", "load_model", "predict", "save_model", "train"]

if TYPE_CHECKING:
    from distsms.api import evaluate, load_model, predict, save_model, train
    from distsms.estimator import SMSClassifier
    from distsms.inference.class_moments import ClassMoments


def __getattr__(name: str) -> Any:
    """The public names, when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = {"SMSClassifier": "estimator", "ClassMoments": "inference.class_moments"}.get(name, "api")
    return getattr(importlib.import_module(f"distsms.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
