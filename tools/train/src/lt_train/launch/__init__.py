"""A checked configuration in, an exit code out: the ranks of this node are started, watched and ended together.

The command line calls `launcher`; a rank runs `worker`, which calls `train`.
"""
