"""Read files of every format, interpret their columns, and write data sets of shards."""
