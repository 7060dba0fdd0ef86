"""Queries, keys and values out of the fused projection, with RoPE (Su et al. 2021) applied, one kernel forward and one backward.

megatron-core splits, copies the queries together, rotates with a dozen operations, and builds the gradient of the projection from
three tensors again. Here a row is read once and written once. Angles are float32; megatron-core rounds their sines to 16 bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels.amax_reduction import note, noted_with

Heads = tuple[Tensor, Tensor, Tensor]


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: Tensor, cosines: Tensor, sines: Tensor, groups: int, size: int) -> Heads:
        sequence, batch, width = mixed.shape
        heads = width // size - 2 * groups
        query = mixed.new_empty(sequence, batch, heads, size)
        key, value = (mixed.new_empty(sequence, batch, groups, size) for _ in range(2))
        _launch(mixed, None, (query, key, value), cosines, sines, True)
        ctx.save_for_backward(cosines, sines)
        return query, key, value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        query, key, value = (gradient if gradient.stride(-1) == 1 else gradient.contiguous() for gradient in gradients)
        cosines, sines = ctx.saved_tensors
        sequence, batch, heads, size = query.shape
        mixed = query.new_empty(sequence, batch, (heads + 2 * key.shape[2]) * size)
        _launch(mixed, noted_with(mixed), (query, key, value), cosines, sines, False)
        return mixed, None, None, None, None


def split_and_rotate(mixed: Tensor, cosines: Tensor, sines: Tensor, groups: int, size: int) -> Heads:
    """Query [s, b, heads, size], key and value [s, b, groups, size] of `mixed` [s, b, (heads + 2 groups) x size].

    A group lies there as Megatron's checkpoints have it: its queries, its key, its value. `cosines` and `sines` are float32
    [s, size / 2]; element i is rotated with element i + size / 2.
    """
    query, key, value = _Split.apply(mixed.contiguous(), cosines, sines, groups, size)  # type: ignore[no-untyped-call]
    return query, key, value


def _launch(mixed: Tensor, parts: Tensor | None, heads: Heads, cosines: Tensor, sines: Tensor, is_forward: bool) -> None:
    sequence, batch, groups, size = heads[1].shape
    slots = mixed.shape[-1] // size
    strides = [stride for part in heads for stride in part.stride()[:3]]
    _move[(sequence * batch,)](
        mixed,
        parts,
        *heads,
        cosines,
        sines,
        batch,
        slots,
        slots // groups,
        *strides,
        is_forward,
        size // 2,
        triton.next_power_of_2(slots),
    )


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    mixed, parts, query, key, value, cosines, sines, batch, slots, in_group,
    query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h,
    FORWARD: tl.constexpr, HALF: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One token: from `mixed` to the heads and rotated, or from the heads to `mixed` and rotated back."""
    token = tl.program_id(0).to(tl.int64)
    position, sample = token // batch, token % batch
    slot = tl.arange(0, SLOTS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    group, index = slot // in_group, slot % in_group
    inside = slot < slots
    is_query, is_key, is_value = (
        inside & (index < in_group - 2),
        inside & (index == in_group - 2),
        inside & (index == in_group - 1),
    )
    cosine = tl.where(is_value, 1.0, tl.load(cosines + position * HALF + column))
    sine = tl.where(is_value, 0.0, tl.load(sines + position * HALF + column))
    whole = mixed + (token * slots + slot) * 2 * HALF + column
    queries = query + position * query_s + sample * query_b + (group * (in_group - 2) + index) * query_h + column
    keys = key + position * key_s + sample * key_b + group * key_h + column
    values = value + position * value_s + sample * value_b + group * value_h + column
    if FORWARD:
        first = tl.load(whole, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(whole + HALF, mask=inside, other=0.0).to(tl.float32)
        rotated = first * cosine - second * sine
        rotated_other = second * cosine + first * sine
        tl.store(queries, rotated, mask=is_query)
        tl.store(queries + HALF, rotated_other, mask=is_query)
        tl.store(keys, rotated, mask=is_key)
        tl.store(keys + HALF, rotated_other, mask=is_key)
        tl.store(values, rotated, mask=is_value)
        tl.store(values + HALF, rotated_other, mask=is_value)
    else:
        first = tl.load(queries, mask=is_query, other=0.0).to(tl.float32)
        second = tl.load(queries + HALF, mask=is_query, other=0.0).to(tl.float32)
        first += tl.load(keys, mask=is_key, other=0.0).to(tl.float32) + tl.load(values, mask=is_value, other=0.0).to(tl.float32)
        second += tl.load(keys + HALF, mask=is_key, other=0.0).to(tl.float32)
        second += tl.load(values + HALF, mask=is_value, other=0.0).to(tl.float32)
        rotated = first * cosine + second * sine
        rotated_other = second * cosine - first * sine
        tl.store(whole, rotated, mask=inside)
        tl.store(whole + HALF, rotated_other, mask=inside)
        if parts is not None:
            note(
                tl.maximum(tl.abs(rotated), tl.abs(rotated_other), propagate_nan=tl.PropagateNan.ALL),
                mixed.dtype.element_ty,
                parts,
            )
