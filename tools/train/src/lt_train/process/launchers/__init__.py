"""What launchers set in the environment of the processes that they start."""
