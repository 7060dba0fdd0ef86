"""Datasets in, micro batches out: a rank's samples in every step, and their index files."""
