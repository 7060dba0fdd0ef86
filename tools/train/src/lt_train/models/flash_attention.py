"""Causal attention by flash-attn-4 (Shah et al. 2024, in NVIDIA's CuTe language), the fastest there is for Hopper.

For Llama 3's heads at 8192 tokens, forward and backward on an H200, 2026-11-22: 7.8 ms against cuDNN's 9.2 with heads of 64,
13.3 against 14.7 with heads of 128. The first call compiles for five seconds. What it does not support is listed in
`lt_train.config.kernels`, which then chooses `CausalAttention`.

megatron-core has the sequence before the batch, flash-attn-4 the batch before the sequence. Its own function returns its output
so, and a copy puts it back; written where it belongs, it needs none: 7 ms of a step of 850.
"""

import functools
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lt_train.models.attention import CausalAttention


class FlashAttention(CausalAttention):
    def _causal(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return attend(query, key, value, self.softmax_scale, window, self.softmax_offset).transpose(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None, sinks: Tensor | None = None
) -> Tensor:
    """[b, s, heads, d] of a query of that shape, and keys and values [b, s, groups, d]; `sinks` [heads]."""
    mixed: Tensor = _Attention.apply(query, key, value, sinks, scale, window)  # type: ignore[no-untyped-call]
    return mixed


class _Attention(torch.autograd.Function):
    """As `attend`; the result is in memory [s, b, heads, d].

    The backward kernel computes probabilities again from scores and normalizers, and takes the product of output and gradient
    from the output. With the sinks in both, its gradients are those of attention with sinks.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, scale: float | None, window: int | None
    ) -> Tensor:
        batch, sequence, heads, size = query.shape
        output = query.new_empty(sequence, batch, heads, size).transpose(0, 1)
        seen = {} if window is None else {"window_size_left": window, "window_size_right": 0}
        _, normalizers, *_ = _flash()._flash_attn_fwd(
            query, key, value, softmax_scale=scale, causal=True, return_lse=True, out=output, **seen
        )
        if sinks is not None:
            normalizers = _add_sinks(output, normalizers, sinks)
        ctx.save_for_backward(query, key, value, sinks, output, normalizers)
        ctx.settings = {"softmax_scale": scale, "causal": True, **seen}
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        query, key, value, sinks, output, normalizers = ctx.saved_tensors
        gradients = _flash()._flash_attn_bwd(query, key, value, output, gradient, normalizers, **ctx.settings)
        of_sinks = None if sinks is None else _sinks_gradient(output, gradient, normalizers, sinks)
        return gradients[0], gradients[1], gradients[2], of_sinks, None, None


def _add_sinks(output: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """Let the sinks [heads] take their share of `output` [b, s, heads, d], in place; the normalizers [b, heads, s] with them."""
    column = sinks.float()[:, None]
    output.mul_(torch.sigmoid(normalizers - column).transpose(1, 2).unsqueeze(-1))
    return torch.logaddexp(normalizers, column)


def _sinks_gradient(output: Tensor, gradient: Tensor, normalizers: Tensor, sinks: Tensor) -> Tensor:
    """A sink has no value: what its probability adds to the output is nothing, and what it takes from it is in proportion."""
    products = (output.float() * gradient.float()).sum(dim=-1).transpose(1, 2)
    probabilities = torch.exp(sinks.float()[:, None] - normalizers)
    return -(probabilities * products).sum(dim=(0, 2)).to(sinks.dtype)


@functools.cache
def _flash() -> ModuleType:
    # It compiles with arguments that its compiler warns of, each time.
    warnings.filterwarnings("ignore", message="Argument aux_data", category=UserWarning)
    from flash_attn.cute import interface

    return interface  # type: ignore[no-any-return]
