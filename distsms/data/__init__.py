"""Read files, interpret their labels, groups and times, split their rows, and write data sets of shards."""
