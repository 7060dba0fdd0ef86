"""Which tokens each sample of a training run has, from what the run recorded: sizes, weights, seed and the lengths of sequences.

lt-train reads its samples in this order; whoever knows a run's arguments finds the text of any step again.
"""
