"""The value of a parameter for a tensor, in mergekit's notation."""

from typing import Any

import pytest

from lt_convert.commands.merge.settings import parse, resolve
from lt_shared.console import UsageError

MLP = "model.layers.1.mlp.up_proj.weight"
FILTERED = [{"filter": "self_attn", "value": [0.0, 1.0]}, {"filter": "mlp", "value": [1.0, 0.5, 0.25]}]


@pytest.mark.parametrize(
    ("setting", "depth", "expected"),
    [
        (0.5, 0.3, 0.5),
        ("1e-3", 0, 0.001),
        ([0, 1], 0.25, 0.25),
        ([0, 1, 3], 0.75, 2.0),
        ([0, 1, 3], 1.0, 3.0),
        ({"value": 2}, 0, 2.0),
        (FILTERED, 0.5, 0.5),
        ([*FILTERED, 0.7][:2], 1.0, 0.25),
        ([{"filter": "*", "value": 4}], 0, 4.0),
    ],
)
def test_a_setting_has_a_value_for_a_tensor(setting: Any, depth: float, expected: float) -> None:
    assert resolve("t", None, [{"t": setting}], MLP, depth) == expected


def test_a_model_precedes_the_merge() -> None:
    unfitting = {"t": [{"filter": "lm_head", "value": 1}]}
    assert resolve("t", 0.9, [{"t": 0.1}, {"t": 0.2}], MLP, 0) == 0.1
    assert resolve("t", 0.9, [unfitting, {"t": 0.2}], MLP, 0) == 0.2
    assert resolve("t", 0.9, [unfitting, {}], MLP, 0) == 0.9


def test_booleans() -> None:
    assert resolve("normalize", True, [{"normalize": False}], MLP, 0) is False
    assert resolve("normalize", True, [{"normalize": [True, False]}], MLP, 1) is False


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("soft", "the parameter t is 'soft'"),
        (True, "the parameter t is True"),
        ([{"filter": "mlp"}], "not a value"),
        ([1, [2]], "t is"),
    ],
)
def test_other_values_are_refused(setting: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve("t", None, [{"t": setting}], MLP, 0)


def test_a_parameter_without_a_value_names_the_tensor() -> None:
    with pytest.raises(UsageError, match=f"the parameter t has no value for {MLP}"):
        resolve("t", None, [{"t": FILTERED[:1]}], MLP, 0)


def test_words_of_the_command_line() -> None:
    assert parse(["t=[0, 0.5]", "normalize=false", "density=[{filter: mlp, value: 0.5}]"]) == {
        "t": [0, 0.5],
        "normalize": False,
        "density": [{"filter": "mlp", "value": 0.5}],
    }
    for words in (["t"], ["=1"], ["t=["], ["t="], ["t=1", "t=2"]):
        with pytest.raises(UsageError, match="--parameter"):
            parse(words)
