"""The files that several formats share: torch's distributed checkpoints, its zip archives, and pickles that are written
without torch.
"""
