"""What a later megatron-core passes to a function that lt-train replaces is refused by its name, and not passed over."""

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lt_shared.console import BadConfig
from lt_train.config.megatron_version import refuse_unknown
from lt_train.models.mlps.router import Router
from lt_train.parallel.fsdp import FullySharded

UNSET: Any = None
REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "TopKRouter.routing": partial(Router.routing, SimpleNamespace(by_kernel=True), torch.zeros(1, 2)),
    "finish_grad_sync": partial(FullySharded.finish_grad_sync, UNSET),
    "named_parameters": partial(FullySharded.named_parameters, UNSET),
    "sharded_state_dict": partial(FullySharded.sharded_state_dict, UNSET, metadata={}),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_an_unknown_argument_is_named(name: str) -> None:
    with pytest.raises(BadConfig, match=r"passes .* the argument later_feature, which lt-train's replacement") as caught:
        REPLACEMENTS[name](later_feature=True)
    assert "megatron-core 0.16.1 or 0.19.2" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["TopKRouter.routing", "finish_grad_sync", "named_parameters"])
def test_an_unknown_argument_without_name(name: str) -> None:
    with pytest.raises(BadConfig, match="the argument number 1"):
        REPLACEMENTS[name](object())


def test_what_changes_nothing_is_taken() -> None:
    refuse_unknown("f", (None, None), {"a": None, "b": 3, "c": 1}, known=("b",), neutral={"c": 1})
    with pytest.raises(BadConfig, match="the argument c"):
        refuse_unknown("f", (), {"c": 2}, neutral={"c": 1})


def test_no_replacement_has_unused_arguments_that_it_does_not_look_at() -> None:
    """Each function that swallows arguments calls the check."""
    import ast
    from pathlib import Path

    package = importlib.import_module("lt_train").__file__
    assert package
    unchecked = []
    for path in Path(package).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            swallowed = {each.arg for each in (node.args.vararg, node.args.kwarg) if each} & {"unused", "unknown", "_", "ignored"}
            calls = {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
            if swallowed and "refuse_unknown" not in calls:
                unchecked.append(f"{path.name}: {node.name}")
    assert not unchecked
