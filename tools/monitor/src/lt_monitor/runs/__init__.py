"""Event records in, runs out: attempts and their steps, where the time went, how fast it was; `faults` says why it failed.

`run_loader` builds whole runs for the views; `run_state` takes records one at a time, for alerts and metrics that continue from a
state file.
"""
