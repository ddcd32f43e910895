"""Linear models that directly optimize ROCArea or PRBEP, distributed over MPI ranks, with a proved gap.

`SMSClassifier` is the scikit-learn estimator, and `BinCodes` and `LeafCodes` are transformers; `shard`, `train`,
`path`, `evaluate`, `predict`, `reasons`, `contributions`, `verify`, `report`, `load_model` and `save_model` work over
all ranks of a communicator;
`ClassMoments` trains for `normal-auc` on rows that arrive bit by bit. `baseline` compares other methods on the same
folds, and `make_features` makes a data set of bins, crosses and leaves (`distsms.features` is the sub-package).
`InputError` and the other exceptions and warnings say what a user can correct. Importing the package loads none of
these, and starts neither MPI nor PETSc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distsms.base._version import __version__ as __version__

__all__ = [
    "BinCodes",
    "ClassMoments",
    "ColumnWarning",
    "DistsmsError",
    "InputError",
    "LaunchError",
    "LeafCodes",
    "ModelWarning",
    "SMSClassifier",
    "baseline",
    "contributions",
    "evaluate",
    "load_model",
    "make_features",
    "path",
    "predict",
    "reasons",
    "report",
    "save_model",
    "shard",
    "train",
    "verify",
]

if TYPE_CHECKING:
    from distsms.base.errors import ColumnWarning, DistsmsError, InputError, LaunchError, ModelWarning
    from distsms.python.api import (
        contributions,
        evaluate,
        load_model,
        predict,
        reasons,
        report,
        save_model,
        train,
        verify,
    )
    from distsms.python.baseline import baseline
    from distsms.python.class_moments import ClassMoments
    from distsms.python.estimator import SMSClassifier
    from distsms.python.features import make_features
    from distsms.python.path import path
    from distsms.python.sharding import shard
    from distsms.python.transformers import BinCodes, LeafCodes

_MODULES = {
    **dict.fromkeys(
        ("ColumnWarning", "DistsmsError", "InputError", "LaunchError", "ModelWarning"), "distsms.base.errors"
    ),
    **dict.fromkeys(("BinCodes", "LeafCodes"), "distsms.python.transformers"),
    "ClassMoments": "distsms.python.class_moments",
    "SMSClassifier": "distsms.python.estimator",
    "shard": "distsms.python.sharding",
    "baseline": "distsms.python.baseline",
    "make_features": "distsms.python.features",
    "path": "distsms.python.path",
}


def __getattr__(name: str) -> Any:
    """The public names, when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_MODULES.get(name, "distsms.python.api")), name)
    except ModuleNotFoundError as absent:
        if (absent.name or "").split(".")[0] != "sklearn":
            raise
        lacking = f"distsms.{name} needs scikit-learn, which is not installed: pip install 'distsms[sklearn]'"
        raise ImportError(lacking, name=absent.name) from absent


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
