"""The page about a model: sections, plots, HTML."""
