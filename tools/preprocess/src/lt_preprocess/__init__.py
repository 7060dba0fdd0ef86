"""Tokenize JSON lines into Megatron's indexed datasets."""

__version__ = "0.1.0"
