"""Experts and their probabilities, the sums of the auxiliary loss, and gradients, against megatron-core's router."""

import pytest
import torch
from megatron.core.transformer.moe.moe_utils import (
    compute_routing_scores_for_aux_loss,
    switch_load_balancing_loss_func,
    topk_routing_with_score_function,
)
from torch import Tensor

from lt_train.kernels.router import choose_experts

COEFFICIENT = 0.3


@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(40, 128, 8), (70, 8, 2), (5, 60, 4), (3, 1030, 3), (4, 4, 4)])
def test_as_megatron_core(tokens: int, experts: int, chosen: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(tokens, experts)).requires_grad_()
    slope = torch.randn(tokens, experts)
    expected, expected_map = topk_routing_with_score_function(logits, chosen)
    loss_map, scores = compute_routing_scores_for_aux_loss(logits, chosen, "softmax")
    numbers = {"total_num_tokens": tokens, "topk": chosen, "num_experts": experts, "moe_aux_loss_coeff": COEFFICIENT}
    expected_loss = switch_load_balancing_loss_func(scores, loss_map.sum(0), **numbers)
    found, found_map, sums, counts = choose_experts(logits, chosen)
    loss = switch_load_balancing_loss_func(sums[None], counts, **numbers)

    assert torch.equal(found_map, expected_map)
    assert counts.tolist() == expected_map.sum(0).tolist()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(sums, scores.sum(0))
    torch.testing.assert_close(loss, expected_loss)
    for outputs, wanted in (((found, loss), (expected, expected_loss)), ((loss,), (expected_loss,)), ((found,), (expected,))):
        slopes = [slope if output.dim() else torch.tensor(50.0) for output in outputs]
        torch.testing.assert_close(
            torch.autograd.grad(outputs, logits, slopes, retain_graph=True)[0],
            torch.autograd.grad(wanted, logits, slopes, retain_graph=True)[0],
        )


def chosen_of(logits: list[list[float]], experts_per_token: int) -> list[list[int]]:
    found: Tensor = choose_experts(torch.tensor(logits, dtype=torch.float32), experts_per_token)[1]
    return [line.nonzero().flatten().tolist() for line in found]


def test_of_equal_logits_the_first_and_always_as_many() -> None:
    nothing, no_number = float("-inf"), float("nan")
    assert chosen_of([[1, 2, 1, 2, 1], [0, 0, 0, 0, 0], [5, 5, 5, 9, 9]], 3) == [[0, 1, 3], [0, 1, 2], [0, 3, 4]]
    assert chosen_of([[nothing, 1, nothing, nothing, nothing], [0, 1, no_number, 0, 0], [nothing] * 5], 2) == [
        [0, 1],
        [1, 2],
        [0, 1],
    ]
