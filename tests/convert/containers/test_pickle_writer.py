"""Pickles against Python's own unpickler."""

import argparse
import collections
import io
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.containers.pickle_writer import Call, Global, Instance, Pairs, Persistent, dumps

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    assert repr(pickle.loads(dumps(value))) == repr(value)


@pytest.mark.parametrize("value", [0, 255, 256, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63, -(2**200), True, False])
def test_integers_at_the_edges(value: int) -> None:
    found = pickle.loads(dumps(value))
    assert (found, type(found)) == (value, type(value))


def test_objects() -> None:
    assert pickle.loads(dumps(Global("collections", "OrderedDict"))) is collections.OrderedDict
    assert pickle.loads(dumps(Call(Global("builtins", "complex"), (1.0, 2.0)))) == 1 + 2j
    assert pickle.loads(dumps(Instance(Global("argparse", "Namespace"), {"a": [1]}))) == argparse.Namespace(a=[1])
    pairs = pickle.loads(dumps(Pairs([(Call(Global("builtins", "complex"), (1.0,)), 2)])))
    assert pairs == {1 + 0j: 2}


def test_a_class_that_is_named_again_is_referred_to() -> None:
    named = [Global("collections", "OrderedDict"), Global("builtins", "complex")] * 300
    written = dumps(named)
    assert pickle.loads(written) == [collections.OrderedDict, complex] * 300
    assert written.count(b"OrderedDict") == 2


def test_pairs_are_made_while_they_are_written() -> None:
    assert pickle.loads(dumps(Pairs((number, str(number)) for number in range(1000)))) == {n: str(n) for n in range(1000)}


def test_persistent_ids() -> None:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, identifier: Any) -> Any:
            return ["persistent", identifier]

    assert Unpickler(io.BytesIO(dumps({"t": Persistent(("storage", 1))}))).load() == {"t": ["persistent", ("storage", 1)]}


def test_anything_else_is_an_error() -> None:
    with pytest.raises(TypeError, match="a set has no place"):
        dumps({"a": {1}})
