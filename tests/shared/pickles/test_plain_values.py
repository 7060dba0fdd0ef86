"""Pickles of containers, texts and numbers alone, and references to objects outside of a pickle."""

import collections
import io
import os
import pickle
from typing import Any

import pytest

from lt_shared import pickles
from lt_shared.console import BadData


class Call:
    """Pickled as a call of a function."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


class Outside(pickle.Pickler):
    """Writes a list as a reference to an object outside of the pickle, as torch.save writes a storage."""

    def persistent_id(self, obj: Any) -> Any:
        return tuple(obj) if isinstance(obj, list) else None


def with_an_object_outside() -> bytes:
    file = io.BytesIO()
    Outside(file, 2).dump({"weight": ["storage", "0"]})
    return file.getvalue()


def test_a_storage_is_its_identifier() -> None:
    assert pickles.loads(with_an_object_outside(), "file") == {"weight": ("storage", "0")}


def test_the_next_pickle_of_several() -> None:
    """torch wrote a file of pickles, one behind the other, before its archives."""
    data = pickle.dumps(1) + with_an_object_outside() + b"values"
    assert pickles.load_next(data, 0, "file") == (1, [], len(pickle.dumps(1)))
    storage = ("storage", "0")
    assert pickles.load_next(data, len(pickle.dumps(1)), "file") == ({"weight": storage}, [storage], len(data) - 6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"]r\xff\xff\xff\x7f.", "it numbers more objects than it holds"),
        (b"", "Ran out of input"),
        (pickle.dumps(Call()), f"it refers to {os.system.__module__}.system, which no checkpoint needs"),
    ],
)
def test_what_is_no_pickle_of_records_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(BadData) as caught:
        pickles.load_next(content, 0, "file")
    assert str(caught.value) == f"file: not a readable pickle: {reason}"


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values(protocol: int) -> None:
    """As many times in nanoseconds as there are, of 64 bits."""
    value = {"times": [*range(1 << 62, (1 << 62) + 2000), -(1 << 63)], "name": "rank 0", "share": 0.5, "none": (None, True)}
    assert pickles.load_plain(pickle.dumps(value, protocol), "dump") == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(collections.OrderedDict()), "it refers to collections.OrderedDict"),
        (pickle.dumps(Call()), f"it refers to {os.system.__module__}.system"),
        (with_an_object_outside(), "it refers to an object outside of it"),
        (pickle.dumps(1 << 64), "it holds numbers as large, or as many large ones, as no checkpoint does"),
        (b"]r\xff\xff\xff\x7f.", "it numbers more objects than it holds"),
        (b"", "Ran out of input"),
    ],
)
def test_what_is_not_plain_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(BadData) as caught:
        pickles.load_plain(content, "dump")
    assert str(caught.value) == f"dump: not a pickle of plain values: {reason}"
    assert caught.value.hint == "do not load it: it may run code"
