"""Merge: an average of checkpoints or a merge by a method, in any formats; LoRA adapters merged and extracted.

Input are the checkpoints from the command line (`sources`) and their `weights`. `plan` turns them into a plan like a
conversion's plan, and `merging` writes it in the same way. The command line and the Python API call this room.
"""
