"""What a user can ask for, once: training, paths of lambdas, comparisons; the faces only translate."""
