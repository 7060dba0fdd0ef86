"""`megatron.core.distributed.param_and_grad_buffer`: clear only those gradients that no GEMM overwrites.

megatron-core fills every gradient buffer with zeros before a step. In lt-train, a weight's first GEMM of a step overwrites its
part of the buffer and later GEMMs add to it, so that most zeros would never be read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.distributed.param_and_grad_buffer",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={"_ParamAndGradBuffer.reset": "(self)"},
)


def replace_reset(buffer: Any, reset: Callable[[], None]) -> None:
    """Call `reset` when megatron-core clears `buffer`, a `_ParamAndGradBuffer`."""
    buffer.reset = partial(_reset, reset)


def _reset(reset: Callable[[], None], *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown("_ParamAndGradBuffer.reset", unknown, unknown_named)
    reset()
