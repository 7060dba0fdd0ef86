"""A checked configuration in, an exit code out: the ranks of this node are started, watched and ended together.

`launcher` is what the command line calls; `worker` is what a rank runs, and calls `train`.
"""
