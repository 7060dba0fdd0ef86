"""lt-train: pretrain decoder language models with megatron-core."""

__version__ = "0.1.0"
