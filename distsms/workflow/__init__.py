"""What a user can ask for, once: the command line, the functions of Python and the estimator only translate."""
