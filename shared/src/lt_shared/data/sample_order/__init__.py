"""Compute the tokens of a training run's samples from recorded sizes, weights, seed and sequence lengths.

lt-train reads its samples in this order, so a run's arguments lead from any step back to its text.
"""
