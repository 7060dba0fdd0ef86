"""Weight gradients that the products themselves add to the gradient buffers.

megatron-core does so with an extension of apex; PyTorch's products can do it too. Otherwise a gradient is written, read, and
added to its buffer in a pass of its own: 5 ms of 850 in a step of 2.8 billion parameters on an H200, by the bytes. And a buffer
in float32 gets what the product summed in float32, not its rounding to 16 bits.
"""

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor


def accumulate_in_products() -> None:
    """Let megatron-core's linear layers take `WeightGradients` for apex's extension."""
    layers.fused_weight_gradient_mlp_cuda = WeightGradients
    layers._grad_accum_fusion_available = True


class WeightGradients:
    """Apex's extension, by its names: `buffer` [n, k] += the transpose of `gradient` [m, n] times `rows` [m, k]."""

    @staticmethod
    def wgrad_gemm_accum_fp32(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
        torch.addmm(buffer, gradient.t(), rows, out_dtype=torch.float32, out=buffer)

    @staticmethod
    def wgrad_gemm_accum_fp16(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
        buffer.addmm_(gradient.t(), rows)
