"""Read training logs of lt-train and Megatron: events as JSON lines, a summary of each run, a picture of the loss."""

__version__ = "0.1.0"
