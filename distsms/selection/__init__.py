"""Choosing among models: folds, paths of lambdas, other methods on the same folds."""
