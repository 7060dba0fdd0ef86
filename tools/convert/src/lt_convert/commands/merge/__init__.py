"""Merge: a weighted average of several checkpoints of one model, of any formats.

Input are the checkpoints that the command line names (`sources`) and their `weights`. `plan` turns them into a plan like a
conversion's plan, and `merging` writes it in the same way. The command line and the Python API call this room.
"""
