"""Helpers that know nothing of learning: files, HDF5, compiled kernels, hashes, formatting, folders of results."""
