"""The states of the gated delta rule from chunk to chunk, the only sequential part of the rule, in one kernel each way.

    update = written - forgotten state
    state = over state + keysᵀ update

Torch needs five operations for every chunk, and the host cannot start them as fast as a GPU computes them. A program has a
head and some of its value channels, whose columns of the state do not depend on each other; it keeps them in registers over all
chunks.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns of a state in a program. With 32 heads of 128 channels, an H200 has a program for each of its processors.
COLUMNS = 32
# Products of three parts in TF32 on tensor cores have float32's precision. 64 chunks of 32 heads on an H200: 0.3 ms forward and
# 0.9 backward, beside 8.9 and 8.2 without tensor cores; states and gradients differ from float64's by at most 5.1e-7 with both.
PRECISION = tl.constexpr("tf32x3")
LAUNCH = {"num_warps": 8, "num_stages": 3}
# The smallest side of a matrix that tl.dot multiplies.
SMALLEST_SIDE = 16


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, written: Tensor, forgotten: Tensor, keys: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        written, forgotten, keys, over = (part.contiguous() for part in (written, forgotten, keys, over))
        states = written.new_empty(*keys.shape[:-2], keys.shape[-1], written.shape[-1])
        updates = torch.empty_like(written)
        _forward[_grid(written)](written, forgotten, keys, over, states, updates, **_sizes(written, keys), **LAUNCH)
        ctx.save_for_backward(forgotten, keys, over, states, updates)
        return states, updates

    @staticmethod
    def backward(ctx: Any, state_gradients: Tensor, update_gradients: Tensor) -> tuple[Tensor, ...]:
        forgotten, keys, over, states, updates = ctx.saved_tensors
        state_gradients, update_gradients = state_gradients.contiguous(), update_gradients.contiguous()
        # The gradient of the state behind every chunk, and of what the chunk writes.
        behind, written = torch.empty_like(states), torch.empty_like(updates)
        parts = (state_gradients, update_gradients, forgotten, keys, over, behind, written)
        _backward[_grid(updates)](*parts, **_sizes(updates, keys), **LAUNCH)
        return written, -(written @ states.mT), updates @ behind.mT, (states * behind).sum(-1)


def delta_states(written: Tensor, forgotten: Tensor, keys: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before every chunk [b, chunks, heads, dk, dv], and the updates [b, chunks, heads, tokens, dv].

    `written` is [b, chunks, heads, tokens, dv], `forgotten` and `keys` [b, chunks, heads, tokens, dk], `over` [b, chunks, heads,
    dk], all float32. The first state is zero. `tokens` is a power of two from 16 on.
    """
    outputs: tuple[Tensor, Tensor] = _States.apply(written, forgotten, keys, over)  # type: ignore[no-untyped-call]
    return outputs


def _grid(values: Tensor) -> tuple[int, int]:
    return values.shape[0] * values.shape[2], triton.cdiv(values.shape[-1], COLUMNS)


def _sizes(values: Tensor, keys: Tensor) -> dict[str, int]:
    side = max(SMALLEST_SIDE, triton.next_power_of_2(keys.shape[-1]))
    sizes = {"chunks": values.shape[1], "heads": values.shape[2], "DV": values.shape[-1], "DK": keys.shape[-1]}
    return sizes | {"TOKENS": values.shape[-2], "KEYS": side, "COLUMNS": COLUMNS}


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    written,
    forgotten,
    keys,
    over,
    states,
    updates,
    chunks,
    heads,
    DV: tl.constexpr,
    DK: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    token, key = tl.arange(0, TOKENS), tl.arange(0, KEYS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    has_key, has_column = key < DK, column < DV
    state = tl.zeros((KEYS, COLUMNS), dtype=tl.float32)
    for chunk in range(chunks):
        number = (sample.to(tl.int64) * chunks + chunk) * heads + head
        values = number * TOKENS * DV + token[:, None] * DV + column[None, :]
        rows = number * TOKENS * DK + token[:, None] * DK + key[None, :]
        columns = number * TOKENS * DK + token[None, :] * DK + key[:, None]
        in_state = number * DK * DV + key[:, None] * DV + column[None, :]
        tl.store(states + in_state, state, mask=has_key[:, None] & has_column[None, :])
        before = tl.load(forgotten + rows, mask=has_key[None, :], other=0.0)
        update = tl.load(written + values, mask=has_column[None, :], other=0.0)
        update -= tl.dot(before, state, input_precision=PRECISION)
        tl.store(updates + values, update, mask=has_column[None, :])
        decay = tl.load(over + number * DK + key, mask=has_key, other=0.0)
        transposed = tl.load(keys + columns, mask=has_key[:, None], other=0.0)
        state = state * decay[:, None] + tl.dot(transposed, update, input_precision=PRECISION)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    state_gradients,
    update_gradients,
    forgotten,
    keys,
    over,
    behind,
    written,
    chunks,
    heads,
    DV: tl.constexpr,
    DK: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    token, key = tl.arange(0, TOKENS), tl.arange(0, KEYS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    has_key, has_column = key < DK, column < DV
    gradient = tl.zeros((KEYS, COLUMNS), dtype=tl.float32)
    for step in range(chunks):
        number = (sample.to(tl.int64) * chunks + chunks - 1 - step) * heads + head
        values = number * TOKENS * DV + token[:, None] * DV + column[None, :]
        rows = number * TOKENS * DK + token[:, None] * DK + key[None, :]
        columns = number * TOKENS * DK + token[None, :] * DK + key[:, None]
        in_state = number * DK * DV + key[:, None] * DV + column[None, :]
        in_both = has_key[:, None] & has_column[None, :]
        tl.store(behind + in_state, gradient, mask=in_both)
        own_keys = tl.load(keys + rows, mask=has_key[None, :], other=0.0)
        update = tl.load(update_gradients + values, mask=has_column[None, :], other=0.0)
        update += tl.dot(own_keys, gradient, input_precision=PRECISION)
        tl.store(written + values, update, mask=has_column[None, :])
        decay = tl.load(over + number * DK + key, mask=has_key, other=0.0)
        before = tl.load(forgotten + columns, mask=has_key[:, None], other=0.0)
        direct = tl.load(state_gradients + in_state, mask=in_both, other=0.0)
        gradient = direct + gradient * decay[:, None] - tl.dot(before, update, input_precision=PRECISION)
