"""The measures that are reported, over all ranks: with curves, histograms, confidence intervals and bootstrap.

In this package, `scored` has this rank's rows that count (`distsms.base.scored`), and `tied` all ranks' sorted scores.
"""
