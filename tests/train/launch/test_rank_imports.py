"""What a rank leaves out while it imports, and what it compiles only when it is called."""

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lt_train.launch import rank_imports

# A package of Python's that nothing here needs.
PACKAGE = "wave"


def test_a_package_is_absent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    with rank_imports.absent(PACKAGE, "json"):
        with pytest.raises(ImportError):
            importlib.import_module(PACKAGE)
        assert importlib.import_module("json") is sys.modules["json"]
    assert importlib.import_module(PACKAGE).open


def test_a_rank_begins_without_torch() -> None:
    """So that the GPU's context is made while torch is imported, also where its launcher can interrupt it."""
    program = """
import os, socket, sys, tempfile
from lt_train.launch import worker
with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
    launcher.bind(place + "/control")
    launcher.listen()
    os.environ[worker.VARIABLE] = place + "/control"
    worker._controlled("cuda", 0)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def test_objects_of_imports_are_not_searched_again() -> None:
    before = gc.get_freeze_count()
    try:
        with rank_imports.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_an_optimizer_is_made_without_the_compiler() -> None:
    program = """
import sys, torch
from lt_train.launch import rank_imports
rank_imports.undo_marks_of_optimizers()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
print("torch._dynamo" in sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The functions that were compiled, in order, by a compiler whose functions return ten times as much."""
    found = []

    def compile_now(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        found.append((function.__name__, options))
        return lambda *arguments, **named: 10 * function(*arguments, **named)

    monkeypatch.setattr(torch, "compile", compile_now)
    rank_imports.compile_when_called()
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
        rank_imports.compile_when_called()

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
