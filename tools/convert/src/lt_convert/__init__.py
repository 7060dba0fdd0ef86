"""lt-convert: checkpoints between Megatron torch_dist and Hugging Face."""

__version__ = "0.1.0"
