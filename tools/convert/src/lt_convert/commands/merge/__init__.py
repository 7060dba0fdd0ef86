"""Merge: a weighted average of several checkpoints of one model, of any formats.

In come the checkpoints that the command line names (`sources`) and their `weights`; `plan` makes of them a plan like a
conversion's, and `merging` has it written as one is. The command line and the Python API call this room.
"""
