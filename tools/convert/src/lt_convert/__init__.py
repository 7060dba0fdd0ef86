"""lt-convert: convert checkpoints between Hugging Face, Megatron (torch_dist and legacy) and TorchTitan."""

__version__ = "0.1.0"
