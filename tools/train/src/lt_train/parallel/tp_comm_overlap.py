"""Overlap of tensor-parallel collectives with GEMMs, by TransformerEngine (--tp-comm-overlap).

TransformerEngine splits each GEMM into chunks and sends one while it computes the next, through buffers that the GPUs of a node
map into each other's memory. They are made once, for the tokens of one micro batch, before the first layer.
"""

from lt_shared.console import BadConfig
from lt_train.config.run_config import RunConfig


def make_buffers(config: RunConfig) -> None:
    """Collective over the tensor-parallel group. Raises BadConfig for a TransformerEngine that takes its settings otherwise."""
    from transformer_engine.pytorch.module import base

    if not hasattr(base, "UserBufferQuantizationMode"):
        raise BadConfig("--tp-comm-overlap needs TransformerEngine 2.7 or newer", "update it, or drop --tp-comm-overlap")
    modes = base.UserBufferQuantizationMode
    tokens = config.batches.seq_length * config.batches.micro_batch_size // config.parallelism.context
    base.initialize_ub(
        shape=[tokens, config.architecture.hidden_size],
        tp_size=config.parallelism.tensor,
        quantization_modes=[modes.FP8 if config.precision.fp8_format else modes.NONE],
        bootstrap_backend="nccl",
    )
