"""Archives of `torch.save`, read by slices: nothing is executed, and an archive with a second reading is refused."""

import argparse
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.archives.torch_archive import STORAGES, StoredTensor, TorchArchive
from lt_shared.console import BadData

MAGIC = b"PK\x03\x04"


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def opened(content: bytes, verify: bool = True) -> TorchArchive:
    return TorchArchive(memoryview(content), "file", verify)


def load(content: bytes) -> Any:
    return opened(content).load()


def values(content: bytes, tensor: StoredTensor) -> torch.Tensor:
    """The tensor that `locate` describes, read from the archive's bytes."""
    storage = content[tensor.begin : tensor.begin + tensor.member.size_bytes]
    flat = torch.frombuffer(bytearray(storage), dtype=getattr(torch, tensor.dtype))
    return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from(list(STORAGES)), st.data())
def test_tensors_are_found_where_torch_has_put_them(shape: list[int], dtype: str, data: st.DataObject) -> None:
    whole = torch.randint(0, 100, shape).to(getattr(torch, dtype))
    order = data.draw(st.permutations(range(len(shape))))
    view = whole.permute(order)[data.draw(st.integers(0, shape[order[0]] - 1)) :]
    content = saved({"view": view, "step": 3})
    archive = opened(content)
    record = archive.load()
    assert record["step"] == 3
    tensor = archive.locate(record["view"])
    assert (tensor.dtype, tensor.shape, tensor.item_bytes) == (dtype, tuple(view.shape), view.element_size())
    assert torch.equal(values(content, tensor), view)
    assert tensor.is_whole_storage == (view.is_contiguous() and view.numel() == whole.numel())


def test_a_slice_of_the_file_is_read_and_no_more() -> None:
    """Both ends of an archive of 4 MB, in a few reads: the values are not read to find them."""
    content = saved(torch.zeros(1_000_000))
    slices: list[tuple[int, int]] = []

    class Range:
        def __len__(self) -> int:
            return len(content)

        def __getitem__(self, index: slice, /) -> bytes:
            slices.append((index.start, index.stop))
            return content[index]

    archive = TorchArchive(Range(), "file")
    assert archive.locate(archive.load()).shape == (1_000_000,)
    assert all(start < stop <= 4096 or len(content) - 4096 <= start < stop <= len(content) for start, stop in slices)
    assert sum(stop - start for start, stop in slices) < 8192
    assert len(slices) < 10


def test_the_attributes_of_a_modules_state_dict_are_dropped() -> None:
    state = torch.nn.LayerNorm(2).state_dict()
    assert list(load(saved(state))) == list(state)


def test_arguments_keep_their_values() -> None:
    arguments = argparse.Namespace(num_layers=2, params_dtype=torch.bfloat16)
    assert vars(load(saved({"args": arguments, "t": torch.ones(2)}))["args"])["num_layers"] == 2


def test_a_storage_is_what_torch_calls_it() -> None:
    storage = load(saved({"t": torch.ones(2)}))["t"].arguments[0]
    assert (storage[0], storage[1].name, storage[2:]) == ("storage", "torch.FloatStorage", ("0", "cpu", 2))


def test_a_set_that_torch_has_saved() -> None:
    """With protocol 2, in which built-in classes have Python 2's names."""
    assert load(saved({"a": {1, 2}, "b": frozenset({3})})) == {"a": {1, 2}, "b": frozenset({3})}


def members(*names: str, before: bytes = b"", compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive whose members hold the pickles of 0, 1, 2, behind the bytes `before`."""
    file = io.BytesIO(before)
    file.seek(len(before))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with zipfile.ZipFile(file, "w", compression) as archive:
            for number, name in enumerate(names):
                archive.writestr(name, pickle.dumps(number))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (members("a/version"), "not an archive of torch.save: it has no data.pkl"),
        (members("a/other.pkl"), "not an archive of torch.save: it has no data.pkl"),
        (members("data.pkl/a"), "not an archive of torch.save: it has no data.pkl"),
        (members("a/data.pk"), "not an archive of torch.save: it has no data.pkl"),
        (members("a/data.pkl", "a/other.pkl"), "not an archive of torch.save: it holds 2 pickles, expected one"),
        (members("a/data.pkl", before=MAGIC), "damaged: not what torch.save writes: other bytes precede its members"),
        (members("a/data.pkl", "a/data.pkl"), "damaged: not what torch.save writes: it holds two members of one name"),
        (members("a/data.pkl", "other.pkl"), "damaged: not what torch.save writes: its members are not in one folder"),
        (members("a/data.pkl")[:-1], "damaged: not what torch.save writes: it does not end with an end record"),
        (
            members("a/data.pkl", compression=zipfile.ZIP_DEFLATED),
            "damaged: not what torch.save writes: a/data.pkl is compressed",
        ),
        (MAGIC, "damaged: not what torch.save writes: it is too short"),
        (b"", "not an archive of torch.save"),
        (b"junk" * 100, "not an archive of torch.save"),
        (pickle.dumps(1) + members("a/data.pkl"), "not an archive of torch.save"),
    ],
)
def test_archives_that_torch_would_read_differently(content: bytes, message: str) -> None:
    with pytest.raises(BadData) as caught:
        load(content)
    assert str(caught.value) == f"file: {message}"


@pytest.mark.parametrize("begin", [b"PK\x03\x05", b"PK\x05\x04", b""])
def test_a_file_that_does_not_begin_as_an_archive(begin: bytes) -> None:
    """torch takes it for a plain pickle, though zipfile finds an archive in it."""
    content = begin + members("a/data.pkl")[len(begin) or 1 :]
    assert zipfile.is_zipfile(io.BytesIO(content))
    with pytest.raises(BadData) as caught:
        load(content)
    assert str(caught.value) == "file: not an archive of torch.save"
    assert str(caught.value.hint).endswith("and may run code in it")


def test_the_pickle_of_an_archive() -> None:
    assert load(members("a/version", "a/data.pkl", "a/data/0")) == 1


def test_an_archive_of_a_big_endian_machine_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(1))
        archive.writestr("a/byteorder", b"big")
    with pytest.raises(BadData, match="was written by a big-endian machine"):
        load(buffer.getvalue())


@pytest.mark.parametrize("verify", [True, False])
def test_a_changed_pickle_has_another_checksum(verify: bool) -> None:
    content = saved({"step": 7}).replace(b"K\x07", b"K\x08")
    if not verify:
        assert opened(content, verify).load() == {"step": 8}
        return
    with pytest.raises(BadData, match=r"archive/data\.pkl has another CRC-32 than the archive says") as caught:
        TorchArchive(content, "file").load()
    assert "copy it again" in str(caught.value.hint)


def test_a_checksum_of_0_is_none() -> None:
    """As torch writes with set_crc32_options(False)."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        content = saved(torch.ones(3))
    finally:
        torch.serialization.set_crc32_options(before)
    archive = opened(content)
    assert archive.storage("0").crc32 == 0
    assert bytes(archive.zip.read(archive.storage("0"))) == torch.ones(3).numpy().tobytes()


class Call:
    """An object whose pickle calls `function` when it is loaded: a tensor's, or a hostile one."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def exploits(place: Path) -> list[Any]:
    return [
        Call(os.mkdir, str(place)),
        Call(os.system, f"mkdir {place}"),
        Call(eval, f"__import__('os').mkdir({str(place)!r})"),
        Call(exec, f"import os; os.mkdir({str(place)!r})"),
        Call(getattr, Path(place), "mkdir"),
        Call(__import__, "os"),
        Call(pickle.loads, pickle.dumps(Call(os.mkdir, str(place)))),
    ]


def zipped(pickled: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    return buffer.getvalue()


@pytest.mark.parametrize("number", range(7))
def test_exploits_are_refused_and_do_not_run(number: int, tmp_path: Path) -> None:
    hostile = exploits(tmp_path / "ran")[number]
    for pickled in (pickle.dumps({"t": hostile}, 2), pickle.dumps({"t": hostile})):
        with pytest.raises(BadData, match="not a readable pickle"):
            load(zipped(pickled))
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickled)
    assert number in (4, 5) or (tmp_path / "ran").is_dir(), "the exploit works where it is not stopped"


def test_functions_of_torch_become_inert(tmp_path: Path) -> None:
    """A class or function of torch is only a name with its arguments, whatever it would do."""
    torch.save(1, tmp_path / "inner.pt")
    record = load(zipped(pickle.dumps(Call(torch.save, 2, str(tmp_path / "inner.pt")))))
    assert (record.name, record.arguments[0]) == ("torch.serialization.save", 2)
    assert torch.load(tmp_path / "inner.pt") == 1


def test_a_second_pickle_in_the_archive_is_refused(tmp_path: Path) -> None:
    """torch.load picks by the name of the archive's first folder, which need not be the first data.pkl."""
    torch.save([1], tmp_path / "two.pt")
    with zipfile.ZipFile(tmp_path / "two.pt", "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Call(os.system, "true")))
    with pytest.raises(BadData, match="its members are not in one folder"):
        load((tmp_path / "two.pt").read_bytes())


def with_pickle(pickled: bytes) -> bytes:
    """The archive of a tensor of 2 x 3 with another pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(torch.arange(6.0).reshape(2, 3)))) as original, zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name in original.namelist():
            if name != "archive/data.pkl":
                archive.writestr(name, original.read(name))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"FloatStorage", b"DoubleStorage", "cut off"),
        (b"FloatStorage", b"ComplexFloatStorage", "holds no plain tensor"),
        (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x009", "holds no plain tensor"),
        (b"K\x02K\x03\x86", b"K\x02K\x09\x86", "cut off"),
        (b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fK\x03\x86", "cut off"),
        (b"K\x02K\x03\x86", b"K\x02J\xff\xff\xff\xff\x86", "natural numbers"),
        (b"K\x03K\x01\x86", b"K\x63K\x01\x86", "cut off"),
        (b"K\x00K\x02K\x03\x86", b"K\x01K\x02K\x03\x86", "cut off"),
        # True is no size, and a tensor has a stride per size.
        (b"K\x02K\x03\x86", b"\x88K\x03\x86", "natural numbers"),
        (b"K\x03K\x01\x86", b"K\x03\x85", "holds no plain tensor"),
        (b"storage", b"storagf", "it is no view of a storage"),
    ],
)
def test_tensors_that_lie_about_themselves(old: bytes, new: bytes, message: str) -> None:
    pickled = opened(saved(torch.arange(6.0).reshape(2, 3))).pickle()
    assert old in pickled
    archive = opened(with_pickle(pickled))
    tensor = archive.locate(archive.load())
    assert values(with_pickle(pickled), tensor).numpy().tolist() == numpy.arange(6.0).reshape(2, 3).tolist()
    with pytest.raises(BadData, match=message):
        lying = opened(with_pickle(pickled.replace(old, new)))
        lying.locate(lying.load())


def test_a_tensor_with_a_state_is_no_plain_tensor() -> None:
    """torch would set the state on the tensor after it is rebuilt."""
    pickled = opened(saved(torch.arange(6.0).reshape(2, 3))).pickle()
    archive = opened(with_pickle(pickled[:-1] + b"}X\x03\0\0\0negK\x01sb."))
    with pytest.raises(BadData, match="holds no plain tensor: it is made by torch"):
        archive.locate(archive.load())


def test_a_view_without_values_may_begin_and_stride_anywhere_in_its_storage() -> None:
    view = torch.arange(6.0).as_strided((0, 12), (3, 1), 6)
    archive = opened(saved(view))
    assert archive.locate(archive.load()).shape == (0, 12)


@pytest.mark.parametrize(
    ("function", "more", "message"),
    [
        (torch._utils._rebuild_tensor_v2, (False, {}), None),
        (torch._utils._rebuild_tensor_v2, (False, {}, {"neg": True}), "it is no view of a storage"),
        (torch._utils._rebuild_tensor, (), "it is made by torch._utils._rebuild_tensor"),
    ],
)
def test_only_plain_tensors_are_located(function: Any, more: tuple[Any, ...], message: str | None) -> None:
    storage = torch.storage.TypedStorage(wrap_storage=torch.ones(3).untyped_storage(), dtype=torch.float32, _internal=True)
    archive = opened(saved(Call(function, storage, 0, (3,), (1,), *more)))
    if message is None:
        assert archive.locate(archive.load()).shape == (3,)
        return
    with pytest.raises(BadData, match="holds no plain tensor") as caught:
        archive.locate(archive.load())
    assert str(caught.value).endswith(message)
