"""torch.compile compiles a function when it is called first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lt_train.megatron import torch_compile


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The functions that were compiled, in order, by a compiler whose functions return ten times as much."""
    found = []

    def compile_now(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        found.append((function.__name__, options))
        return lambda *arguments, **named: 10 * function(*arguments, **named)

    monkeypatch.setattr(torch, "compile", compile_now)
    torch_compile.compile_when_called()
    return found


def test_a_function_is_compiled_at_its_first_call(compiled: list[tuple[str, dict[str, Any]]]) -> None:
    @torch.compile
    def plus(number: int, more: int = 1) -> int:
        """A sum."""
        return number + more

    class Counter:
        @torch.compile(dynamic=True)
        def twice(self, number: int) -> int:
            return 2 * number

    assert not compiled and plus.__doc__ == "A sum."
    assert plus(1) == 20 and plus(1, more=2) == 30 and Counter().twice(3) == 60
    assert compiled == [("plus", {}), ("twice", {"dynamic": True})]


def test_it_is_a_part_of_a_function_that_is_being_compiled() -> None:
    before = torch.compile
    try:
        torch_compile.compile_when_called()

        @torch.compile
        def inner(numbers: torch.Tensor) -> torch.Tensor:
            return numbers + 1

        graphs = []

        def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., Any]:
            graphs.append(graph)
            return graph.forward

        def outer(numbers: torch.Tensor) -> torch.Tensor:
            return 2 * inner(numbers)

        # The real compiler, in one graph or not at all; torch.compile itself may be replaced for CPUs.
        whole = torch._dynamo.optimize(backend, nopython=True)(outer)
        assert whole(torch.ones(2)).tolist() == [4.0, 4.0]
    finally:
        torch.compile = before  # type: ignore[assignment]
    assert len(graphs) == 1
