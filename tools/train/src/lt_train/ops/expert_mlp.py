"""The MLPs of a mixture of experts: grouped GEMMs, with four passes over the rows between them.

A token becomes one row for each of its experts. Rows are sorted by expert, so that an expert multiplies one block of a matrix:

    forward:  gather rows, GEMM with fc1, SwiGLU times the router's probability, GEMM with fc2, sum per token
    backward: gather the output's gradient, GEMM with fc2, SwiGLU's gradient, GEMM with fc1, sum; and both weights' gradients

The backward pass needs the tokens (which the norm before saves as well) and the output of the first GEMM. The gathered rows,
SwiGLU's output and the experts' outputs are as large or, with small experts, larger. They are gathered or computed again (as in
SonicMoE, arXiv 2512.14080): a layer of Qwen3-30B-A3B with 16,384 tokens saves 0.4 GB instead of 1.7, for 0.35 ms.

The probability is applied before the second GEMM, as in megatron-core. So the probability's gradient needs no expert's output: it
is the sum of SwiGLU's output times SwiGLU's output gradient.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from lt_train.ops.grouped_gemm import GroupedGemms, identity, transposed_product

# A grouped GEMM needs at least 16 bytes of columns.
ONES = 8


class RowOperations(Protocol):
    """`lt_train.kernels.expert_rows` or `lt_train.ops.expert_rows`."""

    def weighted_swiglu(
        self, gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None
    ) -> Tensor: ...

    def weighted_swiglu_gradient(
        self, gradient: Tensor, gate_up: Tensor, probabilities: Tensor, bias: Tensor | None, group_of_row: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def sum_rows(self, rows: Tensor, chosen: Tensor) -> Tensor: ...

    def spread_rows(self, tokens: Tensor, chosen: Tensor, token_of_row: Tensor) -> Tensor: ...

    def count_rows(self, routing_map: Tensor) -> tuple[Tensor, Tensor]: ...

    def order_rows(self, routing_map: Tensor, experts_per_token: int, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclasses.dataclass(frozen=True)
class Operations:
    """Implementations of the GEMMs and of the row operations between them."""

    gemms: GroupedGemms
    rows: RowOperations


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of n experts: `fc1` [n, 2 f, h], gates first, `fc2` [n, h, f]. `bias1` is [n, 2 f], `bias2` [n, h]."""

    fc1: Tensor
    fc2: Tensor
    bias1: Tensor | None = None
    bias2: Tensor | None = None


class RowSource(Protocol):
    """Converts tokens to the m rows of `expert_mlp`, and rows back to tokens.

    `borders` [n + 1], int32, separate the experts' blocks of rows; `experts` [m], int64, is the expert of every row.
    """

    @property
    def borders(self) -> Tensor: ...
    @property
    def experts(self) -> Tensor: ...
    def expect(self, tokens: Tensor) -> None:
        """Announce that `gather` will be called with `tokens`, so that their exchange can start."""
        ...

    def gather(self, tokens: Tensor) -> Tensor:
        """Return the rows of `tokens`."""
        ...

    def operand(self, tokens: Tensor, gemms: GroupedGemms) -> Any:
        """Return the rows of `tokens` as an operand of `gemms`."""
        ...

    def combine(self, rows: Tensor) -> Tensor:
        """Sum the rows of every token."""
        ...

    def row_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return the probability of every row: [m]."""
        ...

    def gradient(self, row_gradient: Tensor, probabilities: Tensor) -> Tensor:
        """Return the gradient of `probabilities` from `row_gradient`, the gradient of the rows' probabilities [m]."""
        ...


@dataclasses.dataclass(frozen=True)
class Routing:
    """The rows of t tokens for the n local experts.

    `borders` [n + 1], int32, separate the experts' blocks. `tokens` and `experts` [m], int64, are the token and the expert of
    every row. `rows` [t, k], int32, holds the rows of every token in the order of experts, -1 for missing rows.
    """

    borders: Tensor
    tokens: Tensor
    experts: Tensor
    rows: Tensor
    operations: RowOperations

    @classmethod
    def from_map(cls, routing_map: Tensor, experts_per_token: int, operations: RowOperations) -> Self:
        """Sort by `routing_map` [t, n], bool, with k = `experts_per_token` per line: m = t x k. The host waits for nothing."""
        borders, counts = operations.count_rows(routing_map)
        return cls(borders, *operations.order_rows(routing_map, experts_per_token, counts), operations)

    @classmethod
    def from_partial_map(
        cls,
        routing_map: Tensor,
        experts_per_token: int,
        operations: RowOperations,
        start_copy: Callable[[Tensor], Callable[[], int]],
    ) -> Self:
        """Sort by `routing_map` [t, n], bool, with up to `experts_per_token` set per line.

        `start_copy` starts to copy m to the host, and returns the function that waits for m.
        """
        borders, counts = operations.count_rows(routing_map)
        wait = start_copy(borders[-1])
        tokens, experts, rows = operations.order_rows(routing_map, experts_per_token, counts)
        size = wait()
        return cls(borders, tokens[:size], experts[:size], rows, operations)

    def expect(self, tokens: Tensor) -> None:
        pass

    def gather(self, tokens: Tensor) -> Tensor:
        return self.operations.spread_rows(tokens, self.rows, self.tokens)

    def operand(self, tokens: Tensor, gemms: GroupedGemms) -> Any:
        return gemms.operand(tokens, self.gather)

    def combine(self, rows: Tensor) -> Tensor:
        return self.operations.sum_rows(rows, self.rows)

    def row_probabilities(self, probabilities: Tensor) -> Tensor:
        return probabilities[self.tokens, self.experts]

    def gradient(self, row_gradient: Tensor, probabilities: Tensor) -> Tensor:
        result = torch.zeros_like(probabilities)
        result[self.tokens, self.experts] = row_gradient.to(result.dtype)
        return result


@dataclasses.dataclass(frozen=True)
class DispatchedRows:
    """Rows that a dispatcher has sorted by expert, with one probability per row. The MLP's output has the same order."""

    borders: Tensor
    experts: Tensor

    @classmethod
    def from_counts(cls, counts: Tensor, rows: Tensor) -> Self:
        """Compute borders from `counts` [n], the number of `rows` [m, h] for every expert."""
        borders = counts.to(rows.device, non_blocking=True).cumsum(0, dtype=torch.int32)
        borders = torch.nn.functional.pad(borders, (1, 0))
        numbers = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        return cls(borders, torch.searchsorted(borders[1:], numbers, right=True))

    def expect(self, tokens: Tensor) -> None:
        pass

    def gather(self, tokens: Tensor) -> Tensor:
        return tokens

    def operand(self, tokens: Tensor, gemms: GroupedGemms) -> Any:
        return gemms.operand(tokens)

    def combine(self, rows: Tensor) -> Tensor:
        return rows

    def row_probabilities(self, probabilities: Tensor) -> Tensor:
        return probabilities

    def gradient(self, row_gradient: Tensor, probabilities: Tensor) -> Tensor:
        return row_gradient.to(probabilities.dtype)


def expert_mlp(tokens: Tensor, probabilities: Tensor, routing: RowSource, weights: Weights, operations: Operations) -> Tensor:
    """Compute the experts' MLPs for `tokens` [t, h]. Returns [t, h] in the tokens' dtype.

    `probabilities` are [t, n] with a `Routing` and [t] with `DispatchedRows` rows. `GroupedGemms.weight_gradient` stores the
    gradients of `fc1` and `fc2`.
    """
    output: Tensor = _ExpertMLP.apply(  # type: ignore[no-untyped-call]
        tokens, probabilities, weights.fc1, weights.fc2, weights.bias1, routing, operations
    )
    if weights.bias2 is None:
        return output
    scaled = (
        probabilities.float() @ weights.bias2.float()
        if isinstance(routing, Routing)
        else weights.bias2[routing.experts].float() * probabilities.float().unsqueeze(-1)
    )
    return (output + scaled).to(output.dtype)


class _ExpertMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, probabilities: Tensor, fc1: Tensor, fc2: Tensor, bias1: Tensor | None,
        routing: RowSource, operations: Operations,
    ) -> Tensor:  # fmt: skip
        gemms, borders, scale = operations.gemms, routing.borders, routing.row_probabilities(probabilities).float()
        rows = routing.operand(tokens, gemms)
        matrices, scales1 = gemms.matrices(fc1)
        both = gemms.gated(rows, matrices, scale, borders) if bias1 is None else None
        if both is None:
            gate_up = gemms.times_transposed(rows, matrices, borders)
            activation = gemms.operand(operations.rows.weighted_swiglu(gate_up, scale, bias1, routing.experts))
        else:
            gate_up, activation = both
        del rows, matrices, both
        matrices, scales2 = gemms.matrices(fc2)
        ctx.save_for_backward(tokens, probabilities, scale, fc1, fc2, bias1, gate_up, scales1, scales2)
        # With saved-tensor hooks, `saved_tensors` returns a weight without its attributes (`main_grad`).
        ctx.weights, ctx.routing, ctx.operations = (fc1, fc2), routing, operations
        return routing.combine(gemms.times_transposed(activation, matrices, borders))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, probabilities, scale, fc1, fc2, bias1, gate_up, scales1, scales2 = ctx.saved_tensors
        routing, gemms, operations = ctx.routing, ctx.operations.gemms, ctx.operations.rows
        borders = routing.borders
        routing.expect(tokens)
        output_gradient = routing.gather(gradient.contiguous())
        activation_gradient = gemms.times(output_gradient, fc2, scales2, borders)
        slopes, scale_gradient, activation = operations.weighted_swiglu_gradient(
            activation_gradient, gate_up, scale, bias1, routing.experts
        )
        del activation_gradient
        fc2_gradient = gemms.weight_gradient(ctx.weights[1], output_gradient, partial(identity, activation), borders)
        del output_gradient, activation
        tokens_gradient = routing.combine(gemms.times(slopes, fc1, scales1, borders))
        fc1_gradient = gemms.weight_gradient(ctx.weights[0], slopes, partial(routing.gather, tokens), borders)
        probabilities_gradient = routing.gradient(scale_gradient, probabilities)
        bias_gradient = None if bias1 is None else _sums(slopes, borders)
        return tokens_gradient, probabilities_gradient, fc1_gradient, fc2_gradient, bias_gradient, None, None


def _sums(rows: Tensor, borders: Tensor) -> Tensor:
    """Sum the rows of every group, in a deterministic order."""
    return transposed_product(rows, rows.new_ones(len(rows), ONES), borders)[..., 0]
