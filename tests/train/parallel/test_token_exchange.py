"""Nothing of what is exchanged is read before it has arrived. Whole runs on several ranks are in test_models.py and others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lt_train.ops import expert_rows
from lt_train.ops.expert_mlp import Operations, Routing, Weights, expert_mlp
from lt_train.ops.grouped_gemm import TorchGroupedGemms
from lt_train.parallel.token_exchange import ExchangedRows, TokenExchange, receive, send

TOKENS, HIDDEN, INNER, EXPERTS, CHOSEN = 6, 8, 5, 4, 2
OPERATIONS = Operations(TorchGroupedGemms(), expert_rows)


class OneRank:
    def size(self) -> int:
        return 1


class Late:
    """A collective of one rank whose result is there when it has been waited for."""

    def __init__(self, output: Tensor, source: Tensor, **options: Any):
        self.output, self.source = output.fill_(torch.nan), source

    def wait(self) -> None:
        self.output.copy_(self.source)


def test_what_is_on_its_way_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        monkeypatch.setattr(torch.distributed, name, Late)
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    scores = torch.rand(TOKENS, EXPERTS, requires_grad=True)
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, scores.topk(CHOSEN).indices, True)
    weights = Weights(
        torch.randn(EXPERTS, 2 * INNER, HIDDEN, requires_grad=True), torch.randn(EXPERTS, HIDDEN, INNER, requires_grad=True)
    )
    inputs, slope = (hidden, scores, weights.fc1, weights.fc2), torch.randn(TOKENS, HIDDEN)
    routing = Routing.from_map(chosen, CHOSEN, expert_rows)
    alone = expert_mlp(hidden, scores, routing, weights, OPERATIONS) + hidden.square()

    exchange: Any = TokenExchange(OneRank())  # type: ignore[arg-type]
    tokens = send(hidden, exchange)
    sums = expert_mlp(tokens, scores, ExchangedRows(routing, exchange), weights, OPERATIONS)
    beside = hidden.square()
    found = receive(sums, exchange) + beside

    torch.testing.assert_close(found, alone)
    for gradient, expected in zip(
        torch.autograd.grad(found, inputs, slope), torch.autograd.grad(alone, inputs, slope), strict=True
    ):
        torch.testing.assert_close(gradient, expected)
