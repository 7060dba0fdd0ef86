"""Split the fused QKV projection into queries, keys and values, normalize heads (Qwen3), and apply RoPE (Su et al. 2021).

There is one kernel forward and one backward. megatron-core splits, copies the queries together, normalizes the heads, rotates
with a dozen operations, and builds the projection's gradient from three tensors. These kernels read and write a row once, and
read it once more in the backward pass of the norms. Angles are float32; megatron-core rounds their sines to 16 bits.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lt_train.kernels.amax_reduction import allocate_parts, store_amax

Heads = tuple[Tensor, Tensor, Tensor]
# In the backward pass with norms, a program takes so few slots (heads) that its numbers stay in registers. It sums the norm
# weights' gradients over its tokens; the programs' sums are added afterwards.
PROGRAMS, SLOTS_OF_PROGRAM, WARPS = 528, 8, 2


class HeadNorms(NamedTuple):
    """RMSNorm per head of the queries and keys: weights [size] and the epsilon added to the mean square."""

    query: Tensor
    key: Tensor
    epsilon: float


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mixed: Tensor, query_weight: Tensor | None, key_weight: Tensor | None, epsilon: float, cosines: Tensor,
        sines: Tensor, groups: int, size: int,
    ) -> Heads:  # fmt: skip
        sequence, batch, width = mixed.shape
        heads = width // size - 2 * groups
        query = mixed.new_empty(sequence, batch, heads, size)
        key, value = (mixed.new_empty(sequence, batch, groups, size) for _ in range(2))
        slots = width // size
        _forward[(sequence * batch,)](
            mixed, query, key, value, cosines, sines, query_weight, key_weight, epsilon, batch, slots, slots // groups,
            *_strides((query, key, value)), size // 2, triton.next_power_of_2(slots),
        )  # fmt: skip
        ctx.save_for_backward(cosines, sines, query_weight, key_weight, None if query_weight is None else mixed)
        ctx.epsilon = epsilon
        return query, key, value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = (gradient if gradient.stride(-1) == 1 else gradient.contiguous() for gradient in gradients)
        cosines, sines, query_weight, key_weight, mixed = ctx.saved_tensors
        sequence, batch, groups, size = key.shape
        tokens, slots = sequence * batch, query.shape[2] + 2 * groups
        result = query.new_empty(sequence, batch, slots * size)
        programs, parts, warps, sums = tokens, 1, 4, None
        if mixed is not None:
            programs, parts, warps = min(tokens, PROGRAMS), triton.cdiv(slots, SLOTS_OF_PROGRAM), WARPS
            sums = torch.empty(programs * parts, 2, size, dtype=torch.float32, device=result.device)
        _backward[(programs, parts)](
            result, allocate_parts(result), query, key, value, cosines, sines, mixed, query_weight, key_weight, sums, ctx.epsilon,
            tokens, batch, slots, slots // groups, *_strides((query, key, value)), size // 2,
            triton.next_power_of_2(slots) if sums is None else SLOTS_OF_PROGRAM, num_warps=warps,
        )  # fmt: skip
        if sums is None:
            return result, *[None] * 7
        query_gradient, key_gradient = sums.sum(0).to(query_weight.dtype)
        return result, query_gradient, key_gradient, *[None] * 5


def split_and_rotate(
    mixed: Tensor, cosines: Tensor, sines: Tensor, groups: int, size: int, norms: HeadNorms | None = None
) -> Heads:
    """Return query [s, b, heads, size], key and value [s, b, groups, size] from `mixed` [s, b, (heads + 2 groups) x size].

    `mixed` has the order of Megatron's checkpoints: a group's queries, its key, its value. `cosines` and `sines` are float32
    [s, size / 2]; element i is rotated with element i + size / 2, after the `norms`.
    """
    query_weight, key_weight, epsilon = norms or (None, None, 0.0)
    query, key, value = _Split.apply(  # type: ignore[no-untyped-call]
        mixed.contiguous(), query_weight, key_weight, epsilon, cosines, sines, groups, size
    )
    return query, key, value


def _strides(heads: Heads) -> list[int]:
    return [stride for part in heads for stride in part.stride()[:3]]


@triton.jit
def _places(  # type: ignore[no-untyped-def]
    query, key, value, position, sample, first_slot, slots, in_group,
    query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h, HALF: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Return masks of a token's slots [SLOTS, 1] that are queries, keys and values, and pointers to their first halves."""
    slot = first_slot + tl.arange(0, SLOTS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    group, index = slot // in_group, slot % in_group
    inside = slot < slots
    is_query = inside & (index < in_group - 2)
    is_key = inside & (index == in_group - 2)
    is_value = inside & (index == in_group - 1)
    queries = query + position * query_s + sample * query_b + (group * (in_group - 2) + index) * query_h + column
    keys = key + position * key_s + sample * key_b + group * key_h + column
    values = value + position * value_s + sample * value_b + group * value_h + column
    return inside, is_query, is_key, is_value, queries, keys, values


@triton.jit
def _weights(query_weight, key_weight, is_query, is_value, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the norm weights for both halves of every slot, ones for values."""
    column = tl.arange(0, HALF)[None, :]
    query_part, query_part_other = (
        tl.load(query_weight + column).to(tl.float32),
        tl.load(query_weight + HALF + column).to(tl.float32),
    )
    key_part, key_part_other = tl.load(key_weight + column).to(tl.float32), tl.load(key_weight + HALF + column).to(tl.float32)
    weight = tl.where(is_value, 1.0, tl.where(is_query, query_part, key_part))
    return weight, tl.where(is_value, 1.0, tl.where(is_query, query_part_other, key_part_other))


@triton.jit
def _inverse_root(first, second, epsilon, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the inverse root mean square of every slot [SLOTS, 1]."""
    return tl.rsqrt(tl.sum(first * first + second * second, axis=1, keep_dims=True) / (2 * HALF) + epsilon)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    mixed, query, key, value, cosines, sines, query_weight, key_weight, epsilon, batch, slots, in_group,
    query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h, HALF: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position, sample = token // batch, token % batch
    inside, is_query, is_key, is_value, queries, keys, values = _places(
        query, key, value, position, sample, 0, slots, in_group,
        query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h, HALF, SLOTS,
    )  # fmt: skip
    column = tl.arange(0, HALF)[None, :]
    cosine = tl.where(is_value, 1.0, tl.load(cosines + position * HALF + column))
    sine = tl.where(is_value, 0.0, tl.load(sines + position * HALF + column))
    whole = mixed + (token * slots + tl.arange(0, SLOTS)[:, None]) * 2 * HALF + column
    first = tl.load(whole, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(whole + HALF, mask=inside, other=0.0).to(tl.float32)
    if query_weight is not None:
        weight, weight_other = _weights(query_weight, key_weight, is_query, is_value, HALF)
        inverse = tl.where(is_value, 1.0, _inverse_root(first, second, epsilon, HALF))
        first *= inverse * weight
        second *= inverse * weight_other
    rotated = first * cosine - second * sine
    rotated_other = second * cosine + first * sine
    tl.store(queries, rotated, mask=is_query)
    tl.store(queries + HALF, rotated_other, mask=is_query)
    tl.store(keys, rotated, mask=is_key)
    tl.store(keys + HALF, rotated_other, mask=is_key)
    tl.store(values, rotated, mask=is_value)
    tl.store(values + HALF, rotated_other, mask=is_value)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    result, parts, query, key, value, cosines, sines, mixed, query_weight, key_weight, sums, epsilon,
    tokens, batch, slots, in_group,
    query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h, HALF: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of SLOTS slots of every token that this program takes; without norms, all slots of a single token."""
    column = tl.arange(0, HALF)[None, :]
    first_slot = tl.program_id(1) * SLOTS
    slot = first_slot + tl.arange(0, SLOTS)[:, None]
    is_query_slot = (slot < slots) & (slot % in_group < in_group - 2)
    is_key_slot = (slot < slots) & (slot % in_group == in_group - 2)
    weight_gradient = tl.zeros([SLOTS, HALF], dtype=tl.float32)
    weight_gradient_other = weight_gradient
    if mixed is not None:
        is_value_slot = (slot < slots) & (slot % in_group == in_group - 1)
        weight, weight_other = _weights(query_weight, key_weight, is_query_slot, is_value_slot, HALF)
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = tl.cast(number, tl.int64)
        position, sample = token // batch, token % batch
        inside, is_query, is_key, is_value, queries, keys, values = _places(
            query, key, value, position, sample, first_slot, slots, in_group,
            query_s, query_b, query_h, key_s, key_b, key_h, value_s, value_b, value_h, HALF, SLOTS,
        )  # fmt: skip
        cosine = tl.where(is_value, 1.0, tl.load(cosines + position * HALF + column))
        sine = tl.where(is_value, 0.0, tl.load(sines + position * HALF + column))
        first = tl.load(queries, mask=is_query, other=0.0).to(tl.float32)
        second = tl.load(queries + HALF, mask=is_query, other=0.0).to(tl.float32)
        first += tl.load(keys, mask=is_key, other=0.0).to(tl.float32) + tl.load(values, mask=is_value, other=0.0).to(tl.float32)
        second += tl.load(keys + HALF, mask=is_key, other=0.0).to(tl.float32)
        second += tl.load(values + HALF, mask=is_value, other=0.0).to(tl.float32)
        rotated = first * cosine + second * sine
        rotated_other = second * cosine - first * sine
        place = (token * slots + first_slot + tl.arange(0, SLOTS)[:, None]) * 2 * HALF + column
        if mixed is not None:
            entry = tl.load(mixed + place, mask=inside, other=0.0).to(tl.float32)
            other = tl.load(mixed + place + HALF, mask=inside, other=0.0).to(tl.float32)
            inverse = _inverse_root(entry, other, epsilon, HALF)
            entry *= inverse
            other *= inverse
            weight_gradient += rotated * entry
            weight_gradient_other += rotated_other * other
            rotated *= weight
            rotated_other *= weight_other
            share = tl.sum(rotated * entry + rotated_other * other, axis=1, keep_dims=True) / (2 * HALF)
            rotated = tl.where(is_value, rotated, (rotated - entry * share) * inverse)
            rotated_other = tl.where(is_value, rotated_other, (rotated_other - other * share) * inverse)
        tl.store(result + place, rotated, mask=inside)
        tl.store(result + place + HALF, rotated_other, mask=inside)
        if parts is not None:
            store_amax(
                tl.maximum(tl.abs(rotated), tl.abs(rotated_other), propagate_nan=tl.PropagateNan.ALL),
                result.dtype.element_ty,
                parts,
            )
    if sums is not None:
        program_sums = sums + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * 4 * HALF + column
        tl.store(program_sums, tl.sum(tl.where(is_query_slot, weight_gradient, 0.0), axis=0, keep_dims=True))
        tl.store(program_sums + HALF, tl.sum(tl.where(is_query_slot, weight_gradient_other, 0.0), axis=0, keep_dims=True))
        tl.store(program_sums + 2 * HALF, tl.sum(tl.where(is_key_slot, weight_gradient, 0.0), axis=0, keep_dims=True))
        tl.store(program_sums + 3 * HALF, tl.sum(tl.where(is_key_slot, weight_gradient_other, 0.0), axis=0, keep_dims=True))
