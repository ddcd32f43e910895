"""Linear models that directly optimize ROCArea or PRBEP, distributed over MPI ranks, with a proved gap.

`SMSClassifier` is the scikit-learn estimator (`distsms.estimator`), and `BinCodes` and `LeafCodes` are transformers
(`distsms.features.transformers`); `train`, `evaluate`, `predict`, `contributions`, `load_model` and `save_model`
work over all ranks of a communicator (`distsms.api`); `ClassMoments` trains for `normal-auc` on rows that arrive bit by
bit (`distsms.inference.class_moments`). Importing the package loads none of these, and starts neither MPI nor PETSc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distsms._version import __version__ as __version__

__all__ = [
    "BinCodes",
    "ClassMoments",
    "LeafCodes",
    "SMSClassifier",
    "contributions",
    "evaluate",
    "load_model",
    "predict",
    "save_model",
    "train",
]

if TYPE_CHECKING:
    from distsms.api import contributions, evaluate, load_model, predict, save_model, train
    from distsms.estimator import SMSClassifier
    from distsms.features.transformers import BinCodes, LeafCodes
    from distsms.inference.class_moments import ClassMoments

_MODULES = {
    "BinCodes": "distsms.features.transformers",
    "ClassMoments": "distsms.inference.class_moments",
    "LeafCodes": "distsms.features.transformers",
    "SMSClassifier": "distsms.estimator",
}


def __getattr__(name: str) -> Any:
    """The public names, when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_MODULES.get(name, "distsms.api")), name)
    except ModuleNotFoundError as absent:
        if (absent.name or "").split(".")[0] != "sklearn":
            raise
        lacking = f"distsms.{name} needs scikit-learn, which is not installed: pip install 'distsms[sklearn]'"
        raise ImportError(lacking, name=absent.name) from absent


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
