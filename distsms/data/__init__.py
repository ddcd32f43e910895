"""From files to rows, labels, groups, splits and data sets of shards."""
