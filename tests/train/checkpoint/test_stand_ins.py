"""Arrays in objects of a checkpoint: those of a generator's state as numpy reads them, crafted ones not at all."""

import pickle
from typing import Any

import numpy as np
import pytest

from lt_shared import pickles
from lt_shared.console import BadData
from lt_train.checkpoint.pickle_allowlist import OBJECT_NAMES
from lt_train.checkpoint.stand_ins import STAND_INS

ARRAYS = [
    np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6, dtype=np.uint32).reshape(2, 3)), np.array(True),
    np.arange(3, dtype=">i4"), np.ones(2, np.complex64),
]  # fmt: skip
RECONSTRUCT = b"cnumpy._core.multiarray\n_reconstruct\n"
NDARRAY, DTYPE = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
# A void of eight bytes with a field of an object, and the flag of a dtype that counts references.
FIELD = b"}X\x01\0\0\0a" + DTYPE + b"X\x01\0\0\0O\x85RK\0\x86s"
OBJECTS = DTYPE + b"X\x02\0\0\0V8\x85R(K\x03X\x01\0\0\0|NX\x01\0\0\0a\x85" + FIELD + b"K\x08K\x01K\x01tb"
INT64, EIGHT_BYTES = DTYPE + b"X\x02\0\0\0i8\x85R", b"\x89C\x08AAAAAAAAtb"
EMPTY = NDARRAY + b"K\0\x85C\x01b\x87R"
CRAFTED = {
    "a dtype with objects": DTYPE + b"X\x01\0\0\0O\x85R",
    "a dtype that becomes one with objects": INT64 + b"(K\x03X\x01\0\0\0|NX\x01\0\0\0a\x85" + FIELD + b"K\x08K\x01K\x01tb",
    "pointers": RECONSTRUCT + EMPTY + b"(K\x01K\x04\x85" + OBJECTS + b"\x89C\x20" + b"A" * 32 + b"tb",
    "too few bytes": RECONSTRUCT + EMPTY + b"(K\x01K\x04\x85" + INT64 + EIGHT_BYTES,
    "a negative size": RECONSTRUCT + EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + INT64 + EIGHT_BYTES,
    "a list for its bytes": RECONSTRUCT + EMPTY + b"(K\x01K\x01\x85" + INT64 + b"\x89]K\x01atb",
    "an array of another class": RECONSTRUCT + b"ccollections\nOrderedDict\nK\0\x85C\x01b\x87R",
}  # fmt: skip


def loaded(content: bytes) -> Any:
    return pickles.load_known(content, OBJECT_NAMES, "object", None, STAND_INS)


@pytest.mark.parametrize("protocol", [3, 4])
def test_numbers_are_as_numpy_reads_them(protocol: int) -> None:
    content = pickle.dumps({"state": np.random.RandomState(3).get_state(), "arrays": ARRAYS}, protocol)
    found, expected = loaded(content), pickle.loads(content)
    generator, reference = np.random.RandomState(), np.random.RandomState(3)
    generator.set_state(found["state"])
    assert generator.randint(1 << 30, size=9).tolist() == reference.randint(1 << 30, size=9).tolist()
    for one, other in zip(found["arrays"], expected["arrays"], strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.shape) == (other.dtype.newbyteorder("="), other.shape)


PLAIN = (None, None, None, -1, -1, 0)
STATES = {
    "a part of it": ((b"i8", (2,)), *PLAIN[1:]),
    "names of fields": (None, ("a",), *PLAIN[2:]),
    "fields": (None, None, {}, *PLAIN[3:]),
    "a size": (*PLAIN[:3], 8, *PLAIN[4:]),
    "an alignment": (*PLAIN[:4], 8, 0),
    "flags": (*PLAIN[:5], 63),
    "a unit of time": (*PLAIN, {}),
    "less": PLAIN[:-1],
    "nothing": (),
}


def of_dtype(state: tuple[Any, ...]) -> bytes:
    return b"\x80\x03" + INT64 + pickle.dumps((3, "<", *state), 3)[2:-1] + b"b."


@pytest.mark.parametrize("state", STATES)
def test_a_dtype_has_a_byte_order_only(state: str) -> None:
    """The rest of a state is what numpy's dtype believes: that it has parts, or counts references."""
    assert loaded(of_dtype(PLAIN)).real() == np.dtype("<i8")
    with pytest.raises(BadData, match="it holds an array of something other than numbers"):
        loaded(of_dtype(STATES[state]))


@pytest.mark.parametrize(
    "content", [b"]K\x01a", b"\x96\x08\0\0\0\0\0\0\0AAAAAAAA", b"X\x08\0\0\0AAAAAAAA", b"N", RECONSTRUCT + EMPTY[:-1] + b"R"]
)
def test_an_array_takes_bytes_only(content: bytes) -> None:
    """Not what shows its memory as bytes, such as a bytearray or another array."""
    with pytest.raises(BadData, match="it holds an array that is not made of numbers"):
        loaded(b"\x80\x05" + RECONSTRUCT + EMPTY + b"(K\x01K\x01\x85" + INT64 + b"\x89" + content + b"tb.")


@pytest.mark.parametrize("crafted", CRAFTED)
def test_crafted_arrays_are_refused(crafted: str) -> None:
    with pytest.raises(BadData, match="not a readable pickle"):
        loaded(b"\x80\x03" + CRAFTED[crafted] + b".")
