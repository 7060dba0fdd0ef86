"""Resolve options into the configuration of a run, and find the reasons why it cannot run. Nothing here imports torch.

`settings` has a module per subject: its options, its dataclass, its checks.
"""
