"""The measures that are reported, over all ranks: with curves, histograms, confidence intervals and bootstrap."""
