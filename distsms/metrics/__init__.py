"""The measures that are reported, over all ranks: with curves, histograms, confidence intervals and bootstrap.

In this package, `scores`, `labels` and `weights` are those of this rank's rows that count, (n_local,) each: labels are
+1 or -1, and weights above 0, or None if each row counts once. `tied` has the sorted scores of all ranks.
"""
