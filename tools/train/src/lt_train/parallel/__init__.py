"""How ranks share a model: data parallelism with its gradient buffers, FSDP, overlapped tensor parallelism, initialization."""
