"""Transformers for pipelines of scikit-learn, which turn columns into codes, one column of 0 and 1 for each code.

>>> import numpy as np
>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> from distsms import BinCodes, LeafCodes
>>> X = np.random.default_rng(0).normal(size=(400, 2))
>>> y = X[:, 0] * X[:, 1] > 0
>>> bool(make_pipeline(LeafCodes(trees=20), LogisticRegression()).fit(X, y).score(X, y) > 0.95)
True
>>> BinCodes(bins=4).fit_transform(X).shape
(400, 8)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import ClassifierTags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from distsms.base.errors import InputError
from distsms.base.typing import Labels
from distsms.base.wording import format_value, in_python
from distsms.features import arrays
from distsms.features.growing import LIMIT, MIN_LEAF, N_TREES


def in_two_classes(y: Any) -> tuple[NDArray[Any], Labels]:
    """Return the two classes of labels, and +1 for each row of the second one, -1 for others; ValueError for others."""
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"two classes are needed, and y has one class: {format_value(classes[0])}")
    if (kind := type_of_target(y, input_name="y", raise_unknown=True)) != "binary":
        text = f"The type of the target is {kind}. y has {len(classes)} classes."
        raise ValueError(f"Only binary classification is supported. {text}")
    return classes, np.where(codes == 1, 1, -1).astype(np.int8)


class _Codes(TransformerMixin, BaseEstimator):
    """What both transformers have in common."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self._needs_labels()
        tags.classifier_tags = ClassifierTags(multi_class=False) if self._needs_labels() else None
        return tags

    def _needs_labels(self) -> bool:
        """Trees, and the choice of the strongest crosses, look at labels."""
        return hasattr(self, "trees") or str(getattr(self, "crosses", None)).startswith("top")

    def fit(self, X: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Any:
        """Learn which codes the columns have.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, p)
            The rows.
        y : array-like of shape (n,), optional
            Labels of two classes; needed for trees and for crosses "top:K".
        sample_weight : array-like of shape (n,), optional
            The weights of the rows.

        Returns
        -------
        object
            The transformer itself.

        Raises
        ------
        ValueError
            If options or labels cannot be used.
        """
        weights = None
        if self._needs_labels():
            X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32))
            labels = in_two_classes(y)[1]
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32))
            labels = np.full(X.shape[0], -1, np.int8)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        try:
            names = getattr(self, "feature_names_in_", None)
            self.map_ = arrays.fit_arrays(X, labels, arrays.options(self.get_params()), weights, names)
        except InputError as error:
            raise ValueError(in_python(error.message)) from error
        return self

    def transform(self, X: Any) -> sparse.csr_matrix:
        """Return a column of 0 and 1 for each code.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, p)
            The rows.

        Returns
        -------
        csr_matrix of shape (n, codes)
            float64; each row has a 1 for each tree, attribute and cross.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        return self.map_.to_csr(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns, such as "tree 0, leaf 7", or "age in [30, 35)".

        Without names of the columns there is "column 1" in place of "age"; columns count from 0.

        Parameters
        ----------
        input_features : ignored
            For scikit-learn.

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        return np.array([self.map_.column_name(j) for j in range(self.map_.p)], object)


class LeafCodes(_Codes):
    """The leaves that a row reaches in extremely randomized trees.

    Parameters
    ----------
    trees : int
        The number of trees.
    min_leaf : int
        The least number of rows in a leaf.
    tree_rows : int
        If there are more rows, the trees grow on a sample of at most so many.
    seed : int
        Another seed grows other trees.

    Attributes
    ----------
    map_ : FeatureMap
        The feature map, whose part `forest` is the forest.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Their names, if the columns had any.

    Notes
    -----
    The trees know the labels of the rows on which they grow. So the leaves of these rows tell more about their labels
    than those of new rows do. Judge a pipeline on other rows, as cross-validation does.
    """

    def __init__(self, trees: int = N_TREES, min_leaf: int = MIN_LEAF, tree_rows: int = LIMIT, seed: int = 0) -> None:
        self.trees = trees
        self.min_leaf = min_leaf
        self.tree_rows = tree_rows
        self.seed = seed


class BinCodes(_Codes):
    """The bins of numbers, the categories of columns of 0 and 1 that exclude each other, and crosses of two of them.

    Parameters
    ----------
    bins : int
        The most bins of a column.
    crosses : str, optional
        "all" pairs, the "top:K" pairs with the strongest interaction, or pairs such as "age:job", or "column 0:column
        3" if the columns have no names.

    Attributes
    ----------
    map_ : FeatureMap
        The feature map, whose part `bins` has the attributes and the edges.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Their names, if the columns had any.
    """

    def __init__(self, bins: int = 32, crosses: str | None = None) -> None:
        self.bins = bins
        self.crosses = crosses
