"""One module for each trainer: its step lines, validation, checkpoints, start and end."""
