"""The operations of `lt_train.kernels.expert_rows` in PyTorch, for CPUs and for `--kernels torch`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lt_shared.models.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT


def weighted_swiglu(gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None) -> Tensor:
    result: Tensor = _compiled(_weighted_swiglu, gate_up)(gate_up, probabilities, _row_biases(bias, group_of_row))
    return result


def weighted_swiglu_gradient(
    gradient: Tensor, gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _compiled(_weighted_swiglu_gradient, gate_up)(
        gradient, gate_up, probabilities, _row_biases(bias, group_of_row)
    )
    return result


def sum_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    if not len(rows):
        return rows.new_zeros(len(chosen), rows.shape[1])
    result: Tensor = _compiled(_sum_rows, rows)(rows, chosen)
    return result


def spread_rows(tokens: Tensor, chosen: Tensor, token_of_row: Tensor) -> Tensor:
    return tokens.index_select(0, token_of_row)


def count_rows(routing_map: Tensor) -> tuple[Tensor, Tensor]:
    borders = torch.nn.functional.pad(routing_map.sum(0).cumsum(0, dtype=torch.int32), (1, 0))
    return borders, borders


def order_rows(routing_map: Tensor, experts_per_token: int, borders: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tokens = len(routing_map)
    # Missing rows have index -1, which writes to the extra last line of `rows`.
    expert, token = torch.nonzero_static(routing_map.t(), size=tokens * experts_per_token).t().contiguous()
    rows = torch.full((tokens + 1, experts_per_token), -1, dtype=torch.int32, device=routing_map.device)
    place = torch.nn.functional.pad(routing_map.cumsum(1) - 1, (0, 0, 0, 1))
    rows[token, place[token, expert]] = torch.arange(tokens * experts_per_token, dtype=torch.int32, device=rows.device)
    return token, expert, rows[:tokens]


def _row_biases(bias: Tensor | None, group_of_row: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[group_of_row]


def _weighted_swiglu(gate_up: Tensor, probabilities: Tensor, bias: Tensor | None) -> Tensor:
    gate, up = _gate_and_up(gate_up, bias)
    alpha, offset = _alpha_and_offset(bias)
    values = gate * torch.sigmoid(alpha * gate) * (up + offset)
    return (values * probabilities.unsqueeze(-1)).to(gate_up.dtype)


def _weighted_swiglu_gradient(
    gradient: Tensor, gate_up: Tensor, probabilities: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gate, up = _gate_and_up(gate_up, bias)
    slope, probability = gradient.float(), probabilities.unsqueeze(-1)
    alpha, offset = _alpha_and_offset(bias)
    share = torch.sigmoid(alpha * gate)
    values = gate * share * (up + offset)
    gate_gradient = (up + offset) * share * (1 + alpha * gate * (1 - share)) * slope * probability
    up_gradient = gate * share * slope * probability
    if bias is not None:
        raw_gate, raw_up = (gate_up.float() + bias.float()).chunk(2, dim=-1)
        gate_gradient = gate_gradient * (raw_gate <= CLAMPED_SWIGLU_LIMIT)
        up_gradient = up_gradient * (raw_up.abs() <= CLAMPED_SWIGLU_LIMIT)
    both = torch.cat((gate_gradient, up_gradient), dim=-1).to(gate_up.dtype)
    return both, (slope * values).sum(-1), (values * probability).to(gate_up.dtype)


def _alpha_and_offset(bias: Tensor | None) -> tuple[float, float]:
    return (1.0, 0.0) if bias is None else (CLAMPED_SWIGLU_ALPHA, 1.0)


def _gate_and_up(gate_up: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return gate and up in float32, clamped if there is a bias."""
    if bias is None:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return gate, up
    gate, up = (gate_up.float() + bias.float()).chunk(2, dim=-1)
    return gate.clamp(max=CLAMPED_SWIGLU_LIMIT), up.clamp(-CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_LIMIT)


def _sum_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    is_row = (chosen >= 0).unsqueeze(-1)
    return (rows[chosen.clamp(min=0)].float() * is_row).sum(1).to(rows.dtype)


def _compiled(function: Callable[..., Any], tensor: Tensor) -> Callable[..., Any]:
    return _compiled_for_gpus(function) if tensor.is_cuda else function


@functools.cache
def _compiled_for_gpus(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for any number of rows, because expert parallelism changes it in every step."""
    return torch.compile(function, dynamic=True)
