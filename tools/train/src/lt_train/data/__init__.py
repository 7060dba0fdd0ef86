"""Datasets in, micro batches out: the samples of each rank in each step, and their index files."""
