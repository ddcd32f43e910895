"""Models: their file, scoring, evaluation, output of scores, export."""
