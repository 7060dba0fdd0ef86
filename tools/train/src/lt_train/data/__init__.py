"""Datasets in, micro batches out: which sample each rank sees in which step, and the index files that say so."""
