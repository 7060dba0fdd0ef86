"""Options in, the configuration of a run out, and why it cannot run; nothing here imports torch.

`settings` has a module per subject: its options, its dataclass, its checks.
"""
