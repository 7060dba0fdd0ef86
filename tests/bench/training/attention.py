"""Causal attention with grouped queries by the kernels at hand, for the bare loop and for the floor.

flash-attn-4 compiles its kernels at run time and calls no torch operator, so torch.compile would break its graphs there: two
custom operators hide it.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@functools.cache
def attention(name: str) -> Attention:
    """`cudnn`, `flash`, `flash4`, or `any` for torch's choice: a function of query [b, s, heads, d], key and value [b, s, groups,
    d] that returns [b, s, heads, d]."""
    if name == "flash4":
        return _flash4()
    return functools.partial(_scaled_dot_product, BACKENDS.get(name))


def _scaled_dot_product(backend: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if backend is None:
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    else:
        with sdpa_kernel(backend):
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2)


def _flash4() -> Attention:
    from flash_attn.cute import interface

    @torch.library.custom_op("bench::flash4", mutates_args=())
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        mixed, log_sums, *_ = interface._flash_attn_fwd(query, key, value, causal=True, return_lse=True)
        return mixed, log_sums

    @forward.register_fake
    def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        batch, sequence, heads, _ = query.shape
        return query.new_empty(query.shape), query.new_empty((batch, heads, sequence), dtype=torch.float32)

    @torch.library.custom_op("bench::flash4_backward", mutates_args=())
    def backward(
        query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, gradient: Tensor, log_sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = interface._flash_attn_bwd(
            query, key, value, mixed, gradient, log_sums, causal=True
        )
        return found

    @backward.register_fake
    def _(
        query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, gradient: Tensor, log_sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    def keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    def differentiate(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, mixed, log_sums = ctx.saved_tensors  # type: ignore[attr-defined]
        return backward(query, key, value, mixed, gradient.contiguous(), log_sums)

    forward.register_autograd(differentiate, setup_context=keep)
    return lambda query, key, value: forward(query, key, value)[0]
