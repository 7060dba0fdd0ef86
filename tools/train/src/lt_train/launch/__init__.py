"""Start, watch and end the ranks of this node together: a checked configuration in, an exit code out.

The command line calls `launcher`; a rank runs `worker`, which calls `train`.
"""
