"""Parallelism across ranks: data parallelism with gradient buffers, FSDP, overlapped tensor parallelism, initialization."""
