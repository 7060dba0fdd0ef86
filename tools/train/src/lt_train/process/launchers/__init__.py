"""The environment variables that launchers set for the processes that they start."""
