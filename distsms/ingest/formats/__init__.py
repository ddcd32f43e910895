"""One module for each format of input files, and the registry that chooses among them."""
