"""Tensors in objects of a checkpoint: their values are those of the file, never what lay in memory before."""

import codecs
import io
import pickle
import zipfile
from typing import Any

import pytest
import torch

from lt_shared import pickles
from lt_shared.console import BadData
from lt_train.checkpoint.object_reader import read_object
from lt_train.checkpoint.pickle_allowlist import OBJECT_NAMES
from lt_train.checkpoint.stand_ins import STAND_INS

VALUES = torch.arange(6.0)
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def stored(elements: int, kind: bytes = b"FloatStorage") -> bytes:
    """The reference to a storage of the archive."""
    return b"(X\x07\0\0\0storagectorch\n" + kind + b"\nX\x01\0\0\x000X\x03\0\0\0cpuI%d\ntQ" % elements


def tensor(size: tuple[Any, ...], stride: tuple[Any, ...], offset: Any = 0, storage: bytes = stored(6)) -> bytes:
    """The operations that make a tensor."""
    numbers = b"".join(pickle.dumps(each, 2)[2:-1] for each in (offset, size, stride))
    return REBUILD + b"(" + storage + numbers + b"\x89ccollections\nOrderedDict\n)RtR"


def loaded(operations: bytes, values: bytes = VALUES.numpy().tobytes()) -> Any:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + operations + b".")
        archive.writestr("archive/data/0", values)
    return read_object(io.BytesIO(buffer.getvalue()))


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((6,), (1,), 0), ((2, 3), (3, 1), 0), ((3, 2), (1, 3), 0), ((5,), (1,), 1), ((2,), (5,), 0), ((9,), (0,), 5),
        ((), (), 5), ((0,), (1,), 6), ((4, 0), (1, 1), 6),
    ],
)  # fmt: skip
def test_what_the_storage_holds(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    assert torch.equal(loaded(tensor(size, stride, offset)), VALUES.as_strided(size, stride, offset))
    assert loaded(tensor((0,), (1,), storage=stored(0)), b"").shape == (0,)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((7,), (1,), 0), ((6,), (1,), 1), ((2,), (6,), 0), ((3, 3), (2, 1), 2), ((), (), 6), ((1,), (0,), 6),
        ((1 << 40,), (1,), 0), ((1 << 62, 4), (1, 1), 0), ((6,), (1,), 1 << 62),
        ((6,), (1,), -1), ((-1,), (1,), 0), ((6,), (-1,), 5), ((6,), (1, 1), 0), ((2, 3), (3,), 0),
        ((6.0,), (1,), 0), ((6,), (1.0,), 0), ((6,), (1,), 0.0), ((True,), (1,), 0), ((6,), (1,), None), (("6",), (1,), 0),
    ],
)  # fmt: skip
def test_what_the_storage_does_not_hold_is_refused(size: tuple[Any, ...], stride: tuple[Any, ...], offset: Any) -> None:
    with pytest.raises(BadData, match="it holds a tensor that its storage does not hold"):
        loaded(tensor(size, stride, offset))


@pytest.mark.parametrize("elements", [0, 1, 5, 7, 1 << 62, -6])
def test_a_storage_of_another_size_is_refused(elements: int) -> None:
    with pytest.raises(BadData, match=f"storage 0 has 24 bytes, expected {elements} x 4"):
        loaded(tensor((0,), (1,), storage=stored(elements)))


@pytest.mark.parametrize("elements", [1, 6, 4_000_000_000])
def test_no_memory_is_taken_for_an_empty_storage(elements: int) -> None:
    """torch would enlarge the storage, by what lay in memory before."""
    with pytest.raises(BadData, match="it holds a tensor that its storage does not hold"):
        loaded(tensor((elements,), (1,), storage=stored(0)), b"")


@pytest.mark.parametrize("storage", [b"N", b"ctorch\nfloat32\n", b"ctypes\nSimpleNamespace\n)R"])
def test_a_tensor_of_something_else_is_refused(storage: bytes) -> None:
    with pytest.raises(BadData, match="it holds a tensor that its storage does not hold"):
        loaded(tensor((6,), (1,), storage=storage))


@pytest.mark.parametrize("kind", [b"FloatStorage", b"BFloat16Storage", b"ByteStorage", b"HalfStorage", b"LongStorage"])
@pytest.mark.parametrize("making", [b"I100\n\x85R", b"I100\n\x85\x81", b")R", b"N}X\x04\0\0\0evilK\x01s\x86b"])
def test_the_class_of_a_storage_is_a_name_only(kind: bytes, making: bytes) -> None:
    """Called with a number, torch's takes memory for so many elements, with what lay there before."""
    with pytest.raises(BadData):
        loaded(b"ctorch\n" + kind + b"\n" + making)
    assert not hasattr(getattr(torch, kind.decode()), "evil")


@pytest.mark.parametrize("making", [b"I100\n\x85\x85R", b"I100\n\x85\x85\x81", b")R"])
def test_the_class_of_an_array_is_a_name_only(making: bytes) -> None:
    with pytest.raises(BadData):
        loaded(b"cnumpy\nndarray\n" + making)


@pytest.mark.parametrize("codec", ["hex", "utf-8", "rot13", "base64", 7])
def test_bytes_are_written_in_one_way(codec: Any) -> None:
    """As text: with another codec a few words double their size each time."""

    class Bytes:
        def __reduce__(self) -> Any:
            return codecs.encode, ("text", codec)

    with pytest.raises(BadData, match="it encodes something other than bytes"):
        pickles.load_known(pickle.dumps(Bytes(), 2), OBJECT_NAMES, "file", None, STAND_INS)
    assert pickles.load_known(pickle.dumps([b"\xff\x00"], 2), OBJECT_NAMES, "file", None, STAND_INS) == [b"\xff\x00"]
