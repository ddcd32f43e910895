"""The package as a library: functions, the estimator and transformers of scikit-learn; they only translate."""
