"""`megatron.core.tensor_parallel.layers`: weight gradients by PyTorch's GEMMs in place of apex's extension, which PyPI lacks."""

from collections.abc import Callable
from typing import Any, TypeAlias

from megatron.core.tensor_parallel import layers
from torch import Tensor

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.tensor_parallel.layers",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    values=("fused_weight_gradient_mlp_cuda", "_grad_accum_fusion_available"),
)
# Adds the transpose of a gradient [m, n] times rows [m, k] to a buffer [n, k]; takes rows, gradient, buffer.
Accumulation: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


class WeightGradientExtension:
    """Apex's extension `fused_weight_gradient_mlp_cuda` by its names: `float32` for buffers in float32, `half` for 16 bits."""

    def __init__(self, float32: Accumulation, half: Accumulation):
        self._float32, self._half = float32, half

    def wgrad_gemm_accum_fp32(self, rows: Tensor, gradient: Tensor, buffer: Tensor, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32", unknown, unknown_named)
        self._float32(rows, gradient, buffer)

    def wgrad_gemm_accum_fp16(self, rows: Tensor, gradient: Tensor, buffer: Tensor, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp16", unknown, unknown_named)
        self._half(rows, gradient, buffer)


def use_extension(extension: WeightGradientExtension) -> None:
    """Let the linear layers add weight gradients to gradient buffers by `extension`."""
    layers.fused_weight_gradient_mlp_cuda = extension
    layers._grad_accum_fusion_available = True
