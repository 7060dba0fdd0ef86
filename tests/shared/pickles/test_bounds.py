"""A pickle of a few bytes takes neither all memory nor all time."""

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from lt_shared import pickles
from lt_shared.console import BadData
from lt_shared.pickles import bounds

# An argument of each kind in which most bytes are a STOP, so that a walk that loses its way ends early.
ARGUMENTS = {
    "uint1": b".", "uint2": b"..", "int4": b"....", "uint4": b"\1\0\0\0", "uint8": b"." * 8, "float8": b"." * 8,
    "stringnl": b"'.'\n", "stringnl_noescape": b".\n", "stringnl_noescape_pair": b".\n.\n", "unicodestringnl": b".\n",
    "decimalnl_short": b"1\n", "decimalnl_long": b"1L\n", "floatnl": b".5\n",
    **dict.fromkeys(("string1", "bytes1", "unicodestring1", "long1"), b"\1."),
    **dict.fromkeys(("string4", "bytes4", "unicodestring4", "long4"), b"\1\0\0\0."),
    **dict.fromkeys(("bytes8", "bytearray8", "unicodestring8"), b"\1" + bytes(7) + b"."),
}  # fmt: skip
CUT_OFF = b"X\xff\xff\xff\x7f"


# Enough on the stack for every operation, and objects of the numbers that ARGUMENTS refer to.
OBJECTS = b"(" + b"N" * 60 + b"q.q\1"


@pytest.mark.parametrize("code", [code for code in pickletools.opcodes if code.name != "STOP"], ids=lambda code: code.name)
def test_sizes_are_found_behind_every_operation(code: Any) -> None:
    """Python's own `pickletools` says where the argument ends; a text of 2 GB that is not there follows, or the end."""
    objects = OBJECTS[:61] if code.name == "MEMOIZE" else OBJECTS
    begin = objects + code.code.encode("latin-1") + (ARGUMENTS[code.arg.name] if code.arg else b"")
    last = list(pickletools.genops(begin + b"."))[-2:]
    assert [(found.name, position) for found, _, position in last] == [(code.name, len(objects)), ("STOP", len(begin))]
    with pytest.raises(pickle.UnpicklingError, match="it is cut off"):
        bounds.check(begin + CUT_OFF + b"\n")
    bounds.check(begin + b"." + CUT_OFF)
    bounds.check(begin)


@pytest.mark.parametrize("content", [b"", b".", b"N", b"\xff" + CUT_OFF, b"C\x01a", b"I1"])
def test_sizes_without_an_end(content: bytes) -> None:
    """Whatever else is wrong is for the unpickler to say."""
    bounds.check(content)


@pytest.mark.parametrize("number", [b"Nr\x07\0\0\0.", b"Nr\x0a\0\0\0\1...", b"Np4\n", b"Np11\n......"])
def test_as_many_objects_as_bytes_may_be_numbered(number: bytes) -> None:
    bounds.check(number)


@pytest.mark.parametrize("number", [b"Nr\x08\0\0\0.", b"Nr\0\1\0\0.", b"Np6\n.", b"Np300\n....."])
def test_more_objects_than_bytes_cannot_be_numbered(number: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="it numbers more objects than it holds"):
        bounds.check(number)


# Each ends with a tuple of many tuples: deep ones, and such that hold each one before twice.
MANY = 25_000
SIZE = b"ctorch\nSize\n"
NESTED = {
    "deep": b")" + b"\x85" * MANY,
    "deep, of more": b")" + b"N\x86" * MANY,
    "deep, numbered": b")" + b"".join(b"\x94\x85" for _ in range(MANY)),
    "deep, between marks": b"(" * MANY + b"t" * MANY,
    "deep, through a class": b")q\0" + b"".join(SIZE + b"h\0\x85Rq\0" for _ in range(MANY)),
    "deep, through a class of another way": b")q\0" + b"".join(SIZE + b"h\0\x85\x81q\0" for _ in range(MANY)),
    "deep, through a class with keywords": b")q\0" + b"".join(SIZE + b"h\0\x85}\x92q\0" for _ in range(MANY)),
    "deep, through an instance": b")q\0" + b"".join(b"(h\0\x85itorch\nSize\nq\0" for _ in range(MANY)),
    "deep, through an object": b")q\0" + b"".join(b"(" + SIZE + b"h\0\x85oq\0" for _ in range(MANY)),
    "deep, through storages": b")" + b"\x85Q" * MANY,
    "deep, beside other things": b")" + b"](Ne0(N1}(NNu0\x85" * MANY,
    "deep, over a mark that is gone": b")" + b"(0\x85" * MANY,
    "deep, over a list made at a mark": b")" + b"(Nl0\x85" * MANY,
    "deep, beside a mark that is gone": b")q\0" + b"(h\0(0tq\0" * MANY,
    "twice, beside another": b"(N)" + b"2\x86" * 60 + b"t",
    "twice": b")" + b"2\x86" * 60,
    "twice, by a byte": b")q\0" + b"h\0h\0\x86q\0" * 60,
    "twice, by four bytes": b")r\1\0\0\0" + b"j\1\0\0\0j\1\0\0\0\x86r\1\0\0\0" * 60,
    "twice, by a line": b")p7\n" + b"g7\ng7\n\x86p7\n" * 60,
    "twice, in order": b")\x94" + b"".join(b"h%ch%c\x86\x94" % (number, number) for number in range(60)),
    "twice, by a set": b")q\0" + b"(h\0h\0tq\0" * 60,
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize(
    "read", [pickles.loads, pickles.names, lambda data, origin: pickles.load_known(data, {"torch.Size"}, origin)]
)
def test_tuples_without_end_are_not_hashed(read: Any, nested: bytes) -> None:
    for pickled in (b"\x80\x04}" + nested + b"Ns.", b"\x80\x04}(" + nested + b"Nu.", b"\x80\x04\x8f(" + nested + b"\x90."):
        with pytest.raises(BadData, match="it nests tuples, or refers to the same ones, as no checkpoint does"):
            read(pickled, "file")


def test_numbers_are_of_one_kind() -> None:
    """The unpickler keeps both kinds in one table."""
    for mixed in (b")q\0\x940.", b")\x940)q\0."):
        with pytest.raises(BadData, match="it numbers its objects in two ways"):
            pickles.loads(mixed, "file")


@pytest.mark.parametrize("build", [lambda count: b")" + b"\x85" * count, lambda count: b"(" * count + b"t" * count])
def test_what_is_as_deep_as_can_be(build: Any) -> None:
    deepest: Any = ()
    for _ in range(20_000):
        deepest = (deepest,)
    found = pickles.loads(b"}" + build(20_000) + b"Ns.", "file")
    assert hash(next(iter(found))) in (hash(deepest), hash(deepest[0]))
    with pytest.raises(BadData, match="it nests tuples"):
        pickles.loads(b"}" + build(20_001) + b"Ns.", "file")


@pytest.mark.parametrize(
    "pickled",
    [
        b"(" + b"N" * 30_000 + b"t.",
        b"](" + b"(t" * 30_000 + b"e.",
        b"(" * 30_000 + b"l" * 30_000 + b"\x85.",
        b"(" + b"(l" * 30_000 + b"t.",
    ],
)
def test_what_is_not_deep(pickled: bytes) -> None:
    """Many objects in one tuple, many tuples in a list, and lists in one another, which nothing hashes."""
    bounds.check(pickled)


@pytest.mark.parametrize("code", pickletools.opcodes, ids=lambda code: code.name)
def test_every_operation_takes_and_leaves_what_python_says(code: Any) -> None:
    mark = pickletools.markobject
    taken = code.stack_before[: code.stack_before.index(mark)] if mark in code.stack_before else code.stack_before
    action, count, *_ = bounds._operations.__wrapped__()[ord(code.code)] or pytest.fail(f"{code.name} is not known")
    growth = len(code.stack_after) - len(taken) - (mark in code.stack_after)
    expected = {
        bounds._PUSH: 1, bounds._LONG: 1, bounds._GET: 1, bounds._DUP: 1, bounds._NOTHING: 0, bounds._PUT: 0,
        bounds._MEMOIZE: 0, bounds._MARK: 0, bounds._JOIN: 1 - count, bounds._POP: -count,
        bounds._JOIN_TO_MARK: 1, bounds._REPLACE_TO_MARK: 1, bounds._POP_TO_MARK: 0,
        bounds._STOP: -1,
    }  # fmt: skip
    assert growth == expected[action]
    assert (mark in code.stack_before) == (action in range(bounds._JOIN_TO_MARK, bounds._DUP))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**240), 2**240) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)


@given(PLAIN, st.integers(0, 5))
def test_what_python_writes_is_within_the_bounds(value: Any, protocol: int) -> None:
    assert pickles.loads(pickle.dumps([value, value], protocol), "file") == [value, value]


LARGEST = 2**61 - 1


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("numbers", "is_read"),
    [
        ([number * LARGEST for number in range(1, 900)], True),
        ([number * LARGEST for number in range(1, 1100)], False),
        ([2**48 + number for number in range(1100)], False),
        ([2**40 + number for number in range(20_000)], True),
        ([2**64 - 1, -(2**63), 2**128 - 1], True),
        ([2**300], False),
    ],
    ids=["some that collide", "many that collide", "many large ones", "offsets", "seeds", "a larger one"],
)
def test_large_numbers_are_bounded(numbers: list[int], is_read: bool, protocol: int) -> None:
    """As keys they all have one hash, or take as long to hash as they are large."""
    pickled = pickle.dumps(dict.fromkeys(numbers), protocol)
    if is_read:
        assert list(pickles.loads(pickled, "file")) == numbers
    else:
        with pytest.raises(BadData, match="it holds numbers as large"):
            pickles.loads(pickled, "file")


INDEX = MetadataIndex("weight", torch.Size([4, 0]), 1)


def test_what_compares_by_content_is_read() -> None:
    plan = SavePlan([WriteItem(INDEX, WriteItemType.TENSOR, tensor_data=None)])
    assert type(pickles.loads(pickle.dumps({INDEX: plan}), "file").popitem()[1]).name.endswith("SavePlan")


@pytest.mark.parametrize(
    "endless",
    [
        MetadataIndex(INDEX),  # type: ignore[arg-type]
        MetadataIndex(("weight", (INDEX, INDEX))),  # type: ignore[arg-type]
        MetadataIndex(((1, 2), (3, 4))),  # type: ignore[arg-type]
        WriteItem(WriteItem(INDEX, WriteItemType.SHARD), WriteItemType.SHARD),  # type: ignore[arg-type]
        WriteItem(INDEX, WriteItemType.SHARD, tensor_data=(INDEX,)),  # type: ignore[arg-type]
        TensorWriteData(TensorWriteData(None, None, None), None, None),  # type: ignore[arg-type]
        SavePlan(SavePlan([])),  # type: ignore[arg-type]
    ],
)
def test_what_compares_by_content_does_not_lead_through_others(endless: Any) -> None:
    with pytest.raises(BadData, match=r"inside a|of tuples that are not sizes"):
        pickles.names(pickle.dumps(endless), "file")


def int_of(number_bytes: int) -> bytes:
    # Twelve characters, among them the newline, count as five bytes.
    return b"I" + b"1" * (-(-number_bytes * 12 // 5) - 1) + b"\n"


@pytest.mark.parametrize(
    "number_of",
    [
        lambda size: b"\x8a" + bytes([size]) + b"\1" * size,
        lambda size: b"\x8b" + size.to_bytes(4, "little") + b"\1" * size,
        int_of,
        lambda size: b"L" + int_of(size)[1:],
    ],
    ids=["LONG1", "LONG4", "INT", "LONG"],
)
def test_the_largest_numbers_and_as_many_large_ones_as_there_may_be(number_of: Callable[[int], bytes]) -> None:
    refusal = "^it holds numbers as large, or as many large ones, as no checkpoint does$"
    bounds.check(number_of(32) + b".")
    with pytest.raises(pickle.UnpicklingError, match=refusal):
        bounds.check(number_of(33) + b".")
    bounds.check((number_of(7) + b"0") * 1000 + number_of(6) + b".")
    with pytest.raises(pickle.UnpicklingError, match=refusal):
        bounds.check((number_of(7) + b"0") * 1001 + b"N.")


def test_a_number_is_no_tuple() -> None:
    bounds.check(b"\x8a\1\1" + b"\x85" * bounds.MAX_TUPLES + b".")
    with pytest.raises(pickle.UnpicklingError, match="nests tuples"):
        bounds.check(b"\x8a\1\1" + b"\x85" * (bounds.MAX_TUPLES + 1) + b".")
