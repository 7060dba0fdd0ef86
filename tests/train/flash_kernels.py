"""What flash-attn-4's kernels compute, by their documentation, on a CPU: a stand-in for `flash_attn.cute.interface`.

Causal masks and windows are aligned at the end of queries and keys. Sequences of unequal length lie one behind the other, and
what no sequence has is not written: results are NaN there. The backward kernel takes normalizers and output.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def _flash_attn_fwd(query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    _check(query, key, value, out, lse, given)
    out.fill_(torch.nan)
    lse.fill_(torch.nan)
    for queries, keys in _sequences(query, key, given):
        scores = _scores(query[queries], key[keys], given)
        out[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _of_heads(value[keys], query))
        normalizers = scores.logsumexp(-1)
        if "cu_seqlens_q" in given:
            lse[:, queries] = normalizers.to(lse.dtype)
        else:
            lse[queries] = normalizers.to(lse.dtype)
    return out, lse


def _flash_attn_bwd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    gradient: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    **given: Any,
) -> None:
    _check(query, key, value, output, lse, given)
    assert (dq.shape, dk.shape, dv.shape) == (query.shape, key.shape, value.shape)
    for written in (dq, dk, dv):
        written.fill_(torch.nan)
    scale = _scale(query, given)
    for queries, keys in _sequences(query, key, given):
        normalizers = lse[:, queries] if "cu_seqlens_q" in given else lse[queries]
        weights = (_scores(query[queries], key[keys], given) - normalizers.unsqueeze(-1)).exp().to(query.dtype)
        products = (gradient[queries] * output[queries]).sum(-1).T.unsqueeze(-1)
        of_weights = torch.einsum("qhd,khd->hqk", gradient[queries], _of_heads(value[keys], query))
        of_scores = weights * (of_weights - products) * scale
        dq[queries] = torch.einsum("hqk,khd->qhd", of_scores, _of_heads(key[keys], query))
        groups = key.shape[-2]
        dk[keys] = torch.einsum("hqk,qhd->khd", of_scores, query[queries]).unflatten(1, (groups, -1)).sum(2)
        dv[keys] = torch.einsum("hqk,qhd->khd", weights, gradient[queries]).unflatten(1, (groups, -1)).sum(2)


def _check(query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, given: dict[str, Any]) -> None:
    """As flash-attn-4's interface does."""
    assert key.shape[:-1] == value.shape[:-1] and query.shape[-1] == key.shape[-1]
    assert out.shape == (*query.shape[:-1], value.shape[-1])
    assert all(each.stride(-1) == 1 for each in (query, key, value, out))
    assert lse.dtype == torch.float32 and lse.is_contiguous()
    borders = [given[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if name in given]
    if not borders:
        assert query.dim() == key.dim() == 4
        assert lse.shape == (len(query), query.shape[2], query.shape[1])
        return
    assert query.dim() == key.dim() == 3
    assert lse.shape == (query.shape[1], len(query))
    assert given["max_seqlen_q"] <= len(query) and given["max_seqlen_k"] <= len(key)
    for each in borders:
        assert each.dtype == torch.int32 and each.stride(0) == 1
        assert not (each.diff() < 0).any()


def _sequences(query: Tensor, key: Tensor, given: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The indices of each sequence's queries and keys."""
    if "cu_seqlens_q" not in given:
        yield from ((sample, sample) for sample in range(len(query)))
        return
    queries, keys = (given[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for (first, end), (first_key, end_key) in zip(itertools.pairwise(queries), itertools.pairwise(keys), strict=True):
        assert end - first <= given["max_seqlen_q"] and end_key - first_key <= given["max_seqlen_k"]
        assert end == first or end_key > first_key
        yield slice(first, end), slice(first_key, end_key)


def _scale(query: Tensor, given: dict[str, Any]) -> float:
    return float(given["softmax_scale"] or query.shape[-1] ** -0.5)


def _of_heads(groups: Tensor, query: Tensor) -> Tensor:
    return groups.repeat_interleave(query.shape[-2] // groups.shape[-2], -2)


def _scores(query: Tensor, key: Tensor, given: dict[str, Any]) -> Tensor:
    """[heads, queries, keys]"""
    scores = torch.einsum("qhd,khd->hqk", query, _of_heads(key, query)) * _scale(query, given)
    distance = torch.arange(len(query))[:, None] + len(key) - len(query) - torch.arange(len(key))
    left = given.get("window_size_left")
    assert given["causal"] and given.get("window_size_right", 0) == 0
    return scores.masked_fill((distance < 0) | (distance > (len(key) if left is None else left)), float("-inf"))
