"""General helpers without machine learning: files, HDF5, compiled kernels, hashes, formatting, folders of results."""
