"""flash-linear-attention's Triton kernels: the gated delta rule, Kimi Delta Attention, and the convolution in front of them.

The kernels also compute the decays, the strengths, and the norms of queries and keys. What a sample's documents are is told by
their borders in all samples, one after the other.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus


class _Package(NamedTuple):
    gated_delta: Any
    kimi_delta: Any
    convolution: Any


@functools.cache
def load() -> _Package:
    """Import the kernels. Raises ImportError without the package."""
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    return _Package(chunk_gated_delta_rule, chunk_kda, causal_conv1d)


# All layers of a micro batch share the borders. The cache compares `documents` by identity; the host waits for their number.
@functools.lru_cache(maxsize=2)
def borders_of_all_samples(documents: Tensor, length: int) -> Tensor:
    """Return the borders [n + 1], int64, of the documents in samples of `length` tokens that follow each other.

    `documents` [b, n + 1] has the borders in each sample, from 0 to `length`; equal ones bound no document.
    """
    starts = torch.arange(len(documents), device=documents.device).unsqueeze(1) * length
    borders: Tensor = torch.unique(documents.clamp(max=length).long() + starts)
    return borders


def in_samples(channels: Tensor, borders: Tensor | None) -> Tensor:
    """Return `channels` [s, b, c] as [b, s, c], or with `borders` as [1, b x s, c]."""
    samples = channels.transpose(0, 1)
    return samples if borders is None else samples.reshape(1, -1, channels.shape[-1])


def convolve(channels: Tensor, weight: Tensor, borders: Tensor | None) -> Tensor:
    """Return the SiLU of the causal convolution of `channels` [b, s, c] with `weight` [c, 1, taps]."""
    output, _ = load().convolution(channels, weight.squeeze(1), activation="silu", cu_seqlens=borders)
    return output  # type: ignore[no-any-return]


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alphas: Tensor,
    betas: Tensor,
    log_rates: Tensor,
    biases: Tensor,
    doubles_strength: bool,
    borders: Tensor | None,
    by_channel: bool = False,
) -> Tensor:
    """Return the outputs [b, s, value heads, dv], as `lt_train.ops.gated_delta_rule` defines the rule.

    `query` and `key` are [b, s, key heads, dk], `value` [b, s, value heads, dv]. A token's decay is exp(-exp(`log_rates`)
    softplus(`alphas` + `biases`)), its strength the sigmoid of `betas`; all four have a number per value head.
    `by_channel`: the kernels of Kimi Delta Attention compute it, with the same decay in all channels of a key.
    """
    if by_channel:
        rates = -log_rates.float().exp() * softplus(alphas.float() + biases.float())
        outputs, _ = load().kimi_delta(
            query,
            key,
            value,
            g=rates.unsqueeze(-1).expand(*rates.shape, key.shape[-1]),
            beta=betas,
            allow_neg_eigval=doubles_strength,
            cu_seqlens=borders,
            **(_IN_KERNEL | {"use_gate_in_kernel": False}),
        )
        return outputs  # type: ignore[no-any-return]
    outputs, _ = load().gated_delta(
        query,
        key,
        value,
        g=alphas,
        beta=betas,
        A_log=log_rates,
        dt_bias=biases,
        allow_neg_eigval=doubles_strength,
        cu_seqlens=borders,
        **_IN_KERNEL,
    )
    return outputs  # type: ignore[no-any-return]


def kimi_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decays: Tensor,
    betas: Tensor,
    log_rates: Tensor,
    biases: Tensor,
    borders: Tensor | None,
) -> Tensor:
    """Return as `gated_delta`, with as many key heads as value heads, `decays` [b, s, heads, dk], and `biases` [heads x dk]."""
    outputs, _ = load().kimi_delta(
        query,
        key,
        value,
        g=decays,
        beta=betas,
        A_log=log_rates,
        dt_bias=biases,
        cu_seqlens=borders,
        **_IN_KERNEL,
    )
    return outputs  # type: ignore[no-any-return]


_IN_KERNEL = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
