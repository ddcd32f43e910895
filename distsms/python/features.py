"""`distsms.make_features`: a data set of bins, crosses and leaves.

It is not called `features`, since `distsms.features` is a sub-package, and becomes an attribute of that name when it is
imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distsms.base.errors import speaking_python
from distsms.python.calls import ranks_of, warn, watching
from distsms.workflow import features as workflow
from distsms.workflow.features import Features, FeaturesObserver
from distsms.workflow.requests import FeaturesRequest, Path


def make_features(
    data: Path,
    output: Path,
    comm: Any = None,
    *,
    bins: int | None = None,
    crosses: str | None = None,
    trees: int | None = None,
    keep: bool = False,
    like: Path | None = None,
    memory: float | str | None = None,
    overwrite: bool = False,
    watch: Callable[[str, str, float, float], None] | None = None,
    **settings: Any,
) -> Features:
    """Make bins, crosses and leaves of trees from the columns of a data set. **Collective.**

    It does what the command ``distsms features`` does with the options of the same names, and makes the same data set.

    Parameters
    ----------
    data : path
        A data set made by ``distsms shard``, but not of sequences.
    output : path
        The directory of the new data set. Models that are trained on it take rows with the original columns.
    comm : mpi4py communicator, optional
        The ranks, which share the rows; None is this process alone.
    bins : int, optional
        The most bins of a column of numbers; by default 32, or no bins if there are trees and neither crosses nor
        attributes.
    crosses : str, optional
        Which pairs of attributes are crossed: ``"all"``, ``"top:100"`` for those with the strongest interaction, or
        pairs such as ``"age:job,age:hours"``.
    trees : int, optional
        Grow so many extremely randomized trees, whose leaves are features. This needs scikit-learn.
    keep : bool
        Keep the original columns as features, too.
    like : path, optional
        Make the features that this data set has, as for test rows. It takes all rules from there.
    memory : float or str, optional
        The most memory that each rank may take, in bytes or as ``"4GiB"``.
    overwrite : bool
        Replace the data set in `output`, if there is one.
    watch : callable, optional
        Called on every rank as the work goes on, with what is done (such as ``"growing trees"``), what is counted, how
        much of it this rank has done, and how much it has.
    **settings
        Further options of the command: min_leaf, tree_rows and seed, for trees; attributes (a file), shards,
        compression.

    Returns
    -------
    Features
        The same on every rank: the new data set, its features, and notes on them. `to_dict` is ready for JSON, and
        `to_frame` has a row for each attribute and each tree.

    Examples
    --------
    >>> import tempfile, numpy as np, distsms
    >>> from distsms.shards.from_arrays import write_data
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, 1, -1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = write_data(f"{folder}/data", X, y).directory
    ...     result = distsms.make_features(data, f"{folder}/pairs", bins=4, crosses="all")
    ...     model = distsms.train(f"{folder}/pairs", lam=1e-2, solver="lbfgs")
    >>> result.manifest.p, result.feature_map.describe()
    (24, '2 numbers in bins, 1 crosses: 24 columns')
    >>> model.info["training"]["rocarea"] > 0.9
    True
    >>> result.to_frame().values.tolist()
    [['column 1', 'bins', 4], ['column 2', 'bins', 4]]
    """
    ranks = ranks_of(comm, locals() | settings)
    of_request = {name: settings.pop(name) for name in ("shards", "compression") if name in settings}
    options = {"bins": bins, "crosses": crosses, "trees": trees, "keep": keep or None, **settings}
    with speaking_python():
        request = FeaturesRequest(
            data=data,
            output=output,
            options={name: value for name, value in options.items() if value is not None},
            like=like,
            memory=memory,  # type: ignore[arg-type]  # text becomes a number
            overwrite=overwrite,
            **of_request,
        )
        result = workflow.make_features(request, ranks, watching(FeaturesObserver(), "progress", watch))
    warn(ranks, result.warnings)
    return result
