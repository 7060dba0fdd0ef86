"""xIELU beside transformers' module of it, and the gradients that tensor-parallel ranks sum."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.activations import XIELUActivation

from lt_train.models.mlps import xielu


class SumOfTwoRanks(torch.autograd.Function):
    """What the region does on two ranks with equal inputs: the backward pass sums."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor) -> torch.Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The module here, on one rank and in float32, and transformers' module with the same numbers."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(xielu, "copy_to_tensor_model_parallel_region", lambda parameter: parameter)
    config: Any = SimpleNamespace(params_dtype=torch.float32)
    ours, theirs = xielu.XIELU(config), XIELUActivation(dtype=torch.float32)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    with torch.no_grad():
        for name, value in (("alpha_p", 0.7), ("alpha_n", -0.4)):
            for module in (ours, theirs):
                getattr(module, name).fill_(value)
    return ours, theirs


def gradients(module: Any, hidden: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    """Return the output, and the gradients of the input and of both parameters."""
    hidden = hidden.clone().requires_grad_()
    output = module(hidden, *arguments)
    output.square().sum().backward()
    parts = [output.detach(), hidden.grad, module.alpha_p.grad.clone(), module.alpha_n.grad.clone()]
    module.zero_grad()
    return parts  # type: ignore[return-value]


HIDDEN = torch.cat((torch.linspace(-6, 6, 25), torch.tensor([-1e-7, 0.0, 1e-7]))).view(4, 1, 7)


def test_it_computes_what_transformers_does(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    torch.testing.assert_close(gradients(ours, HIDDEN, None), gradients(theirs, HIDDEN))


def test_ranks_sum_the_gradients_of_its_numbers_alone(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair
    output, hidden, *alphas = gradients(ours, HIDDEN, None)
    monkeypatch.setattr(xielu, "copy_to_tensor_model_parallel_region", SumOfTwoRanks.apply)
    summed = gradients(ours, HIDDEN, None)
    torch.testing.assert_close(summed, [output, hidden, *(2 * alpha for alpha in alphas)])
