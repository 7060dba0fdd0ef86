"""The settings of a run, a module per subject: its options, the dataclass that they become, and the checks that need no torch."""
