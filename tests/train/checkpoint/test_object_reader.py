"""Objects of a checkpoint are read without executing any of it, whatever else the archive holds."""

import copy
import errno
import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import stored
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import SMALL, train
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from lt_shared.console import BadData, IoFailure
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Dataset
from lt_train.checkpoint import object_reader, tensor_reader
from lt_train.checkpoint.object_reader import known_objects_only, read_index, read_object
from lt_train.checkpoint.starting_point import remedies
from lt_train.process.interruption import Echo


class Malicious:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def two_directories(harmless: bytes, malicious: bytes) -> bytes:
    """An archive in which torch's reader finds `malicious` and Python's `harmless`.

    The end record gives an offset, which torch's reader follows; Python's takes the directory that lies directly before the end
    record, and shifts all offsets by what it takes for foreign bytes in front.
    """
    end = harmless.rindex(b"PK\x05\x06")
    fields = list(struct.unpack("<4s4H2IH", harmless[end : end + 22]))
    size, offset = fields[5], fields[6]
    front, directory = harmless[:offset], harmless[offset : offset + size]
    hostile_end = malicious.rindex(b"PK\x05\x06")
    hostile_size, hostile_offset = struct.unpack("<2I", malicious[hostile_end + 12 : hostile_end + 20])
    body = malicious[:hostile_offset]
    hostile = malicious[hostile_offset : hostile_offset + hostile_size]
    assert len(hostile) == len(directory)
    length = max(len(body), len(front))
    end_record = struct.pack("<4s4H2IH", *fields[:5], size, length, 0)
    return body.ljust(length, b"\0") + hostile + front.ljust(length, b"\0") + directory + end_record


def test_torch_and_python_can_be_made_to_disagree(tmp_path: Path) -> None:
    """The attack is real: torch runs what Python's zipfile does not show."""
    archive = two_directories(saved({"step": 1}), saved(Malicious(tmp_path / "ran")))
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        (member,) = (name for name in opened.namelist() if name.endswith(".pkl"))
        assert b"system" not in opened.read(member)
    torch.load(io.BytesIO(archive), weights_only=False)
    assert (tmp_path / "ran").exists()


def test_an_ambiguous_archive_runs_nothing(tmp_path: Path) -> None:
    archive = two_directories(saved({"step": 1}), saved(Malicious(tmp_path / "ran")))
    with known_objects_only(), pytest.raises(BadData, match="its directory does not lie before its end record"):
        torch.load(io.BytesIO(archive), weights_only=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "bare pickle"])
def test_a_pickle_that_names_code_is_refused(tmp_path: Path, archive: bool) -> None:
    hostile = Malicious(tmp_path / "ran")
    content = saved(hostile) if archive else pickle.dumps(hostile)
    with known_objects_only(), pytest.raises(BadData):
        torch.load(io.BytesIO(content), weights_only=False)
    with pytest.raises(BadData, match="system"):
        read_index(io.BytesIO(pickle.dumps(hostile)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("forced", ["", "1"])
@pytest.mark.parametrize("options", [{}, {"map_location": "cpu"}, {"weights_only": None}, {"weights_only": True}])
def test_what_is_left_to_torch_runs_nothing(
    options: dict[str, Any], forced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As common.pt, which megatron-core reads without saying how; the variable makes torch run what a pickle names then."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", forced)
    path = tmp_path / "common.pt"
    path.write_bytes(saved(Malicious(tmp_path / "ran")))
    with known_objects_only(), pytest.raises(BadData, match=r"GLOBAL .*system"):
        torch.load(path, **options)
    assert not (tmp_path / "ran").exists()
    path.write_bytes(saved({"iteration": 4}))
    with known_objects_only():
        assert torch.load(path, **options) == {"iteration": 4}


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    """torch.load would hand it to torch.jit."""
    path = tmp_path / "script.pt"
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(path))
    with pytest.raises(BadData, match=r"compressed|expected one"):
        read_object(path.open("rb"))


def test_the_originals_are_back_afterwards() -> None:
    before = torch.load, filesystem.pickle
    with pytest.raises(BadData), known_objects_only():
        raise BadData("x")
    assert (torch.load, filesystem.pickle) == before


DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.int64]


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(lambda dtype, shape: torch.ones(shape).mul(3).to(dtype), st.sampled_from(DTYPES), shapes)


def test_an_object_of_which_several_parts_are_wanted_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = saved(torch.arange(4)), saved(torch.ones(3))
    file = io.BytesIO(first + second)
    reads: list[int] = []
    readinto = object_reader._read_piece
    monkeypatch.setattr(object_reader, "_read_piece", lambda file, *rest: (reads.append(file.tell()), readinto(file, *rest))[1])
    places = [_StorageInfo("shard", 0, len(first)), _StorageInfo("shard", len(first), len(second))]
    with known_objects_only():
        found = [
            torch.load(filesystem.FileSystemReader._slice_file(None, file, places[number])).tolist()  # type: ignore[arg-type]
            for number in (0, 0, 1, 0)
        ]
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 1, 1], [0, 1, 2, 3]]
    assert reads == [0, len(first), 0]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | tensors(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)
def test_reads_what_torch_reads(value: Any) -> None:
    content = saved(value)
    expected, found = torch.load(io.BytesIO(content), weights_only=False), read_object(io.BytesIO(content))
    assert saved(found) == saved(expected)


def test_tensors_that_share_a_storage_and_strides() -> None:
    whole = torch.arange(12.0).view(3, 4)
    content = saved({"whole": whole, "part": whole[1:, ::2], "turned": whole.t()})
    found = read_object(io.BytesIO(content))
    assert torch.equal(found["part"], whole[1:, ::2]) and torch.equal(found["turned"], whole.t())
    found["whole"][1, 0] = -1
    assert found["part"][0, 0] == -1


@given(st.data())
def test_a_flipped_bit_is_refused_or_harmless(data: st.DataObject) -> None:
    value = {"tensor": torch.arange(8.0), "step": 7}
    content = bytearray(saved(value))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = read_object(io.BytesIO(bytes(content)))
    except BadData:
        return
    assert found["step"] == 7 and torch.equal(found["tensor"], value["tensor"])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("begin", [b"PK\x01\x02", b"PK\x03\x05", bytes(4)])
def test_a_member_without_its_header_is_refused(begin: bytes, verify: bool) -> None:
    """The directory leads to it, but what is there is something else."""
    content = bytearray(saved(torch.arange(8.0)))
    offset = zipfile.ZipFile(io.BytesIO(content)).getinfo("archive/data/0").header_offset
    content[offset : offset + 4] = begin
    with pytest.raises(BadData, match="archive/data/0: its header contradicts the directory"):
        read_object(io.BytesIO(bytes(content)), verify)


@pytest.mark.parametrize(("is_there", "reason"), [(False, "no such file or directory"), (True, "input/output error")])
def test_a_shard_that_cannot_be_read_is_named_with_a_remedy(
    is_there: bool, reason: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    if is_there:
        for module in (object_reader, tensor_reader):
            monkeypatch.setattr(module, "LEAST_BYTES", 0)

        def fail(*arguments: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "preadv", fail)
    else:
        (copied / "__0_0.distcp").unlink()
    with pytest.raises(IoFailure) as caught, remedies(), known_objects_only(copied):
        stored.tensors(copied)
    assert str(caught.value) == f"{copied}/__0_0.distcp: {reason}"
    assert caught.value.hint == "see that every node can read it, and run the same command again"


def test_the_rank_that_failed_reports_it() -> None:
    """This is rank 0, and the message begins with the name of its node."""
    denied = PermissionError(13, "denied", "shard")
    cases: list[tuple[dict[int, Exception], type[Exception], str]] = [
        ({1: denied}, Echo, "denied"),
        ({0: BadData("damaged"), 1: denied}, BadData, "damaged"),
        ({0: Echo("another rank"), 1: denied}, Echo, "another rank"),
        ({1: raised(denied)}, PermissionError, "denied"),
        ({1: RuntimeError("other")}, Echo, "other"),
        ({0: RuntimeError("gloo: connection closed"), 1: denied}, RuntimeError, "gloo"),
    ]
    for causes, kind, reason in cases:
        failures = {rank: (cause, StackSummary()) for rank, cause in causes.items()}
        with pytest.raises(kind, match=reason), known_objects_only():
            raise CheckpointException("read", failures)  # type: ignore[arg-type]


def raised(error: Exception) -> Exception:
    """As a rank has it that megatron-core 0.19 lets load for itself."""
    try:
        raise copy.copy(error)
    except type(error) as found:
        return found


def test_an_index_that_cannot_be_read_is_named(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    (copied / ".metadata").unlink()
    with pytest.raises(IoFailure, match=r"\.metadata: no such file"), remedies(), known_objects_only(copied):
        stored.tensors(copied)


def index(name: Any) -> bytes:
    entry = MetadataIndex("a")
    return pickle.dumps(Metadata({"a": BytesStorageMetadata()}, storage_data={entry: _StorageInfo(name, 0, 1)}))


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "a/b", "..", "", "a\0b", 7])
def test_an_index_that_names_other_files_is_refused(name: Any) -> None:
    assert read_index(io.BytesIO(index("__0_0.distcp"))).storage_data[MetadataIndex("a")].relative_path == "__0_0.distcp"
    with pytest.raises(BadData, match=r"names a (file outside the checkpoint|shard that is no text)"):
        read_index(io.BytesIO(index(name)))


def test_strides_of_torch_2_15_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its indices are read by earlier versions, and megatron-core can pass what is in them to torch.empty."""
    properties = TensorProperties(dtype=torch.bfloat16)
    of_2_13 = properties.__getstate__()[:5]
    tensor = TensorStorageMetadata(properties, torch.Size([2, 3]), [])
    for state in (of_2_13, (*of_2_13, (3, 1)), (*of_2_13, None)):
        with monkeypatch.context() as patch:
            patch.setattr(TensorProperties, "__getstate__", lambda _, state=state: state)
            content = pickle.dumps(Metadata({"weight": tensor}, storage_data={}))
        found = read_index(io.BytesIO(content)).state_dict_metadata["weight"].properties
        assert type(found) is TensorProperties
        assert torch.empty(2, 3, **vars(found), device="meta").dtype == torch.bfloat16
        assert found.memory_format == torch.contiguous_format


@pytest.mark.parametrize("state", [7, (), ("dtype",), {"dtype": 1}])
def test_malformed_properties_are_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [])
    with monkeypatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", lambda _: state)
        content = pickle.dumps(Metadata({"weight": tensor}, storage_data={}))
    with pytest.raises(BadData):
        read_index(io.BytesIO(content))


def test_a_run_refuses_a_checkpoint_whose_archive_is_ambiguous(tmp_path: Path, unrecorded: Path, dataset: Dataset) -> None:
    """As a user meets it: --load of a directory from a stranger."""
    metadata = pickle.loads((unrecorded / ".metadata").read_bytes())
    archive = two_directories(saved({"a": 1}), saved(Malicious(tmp_path / "ran")))
    for key, info in list(metadata.storage_data.items()):
        if isinstance(metadata.state_dict_metadata[key.fqn], BytesStorageMetadata):
            shard = unrecorded / info.relative_path
            metadata.storage_data[key] = type(info)(info.relative_path, shard.stat().st_size, len(archive))
            shard.write_bytes(shard.read_bytes() + archive)
    (unrecorded / ".metadata").write_bytes(pickle.dumps(metadata))
    checkpoint_layout.write_tracker(unrecorded.parent, checkpoint_layout.iteration_of(unrecorded))
    folders = ("--load", str(unrecorded.parent), "--save", str(tmp_path / "ours"))
    result = train(*SMALL, "--train-iters", "14", "--hidden-dropout", "0.1", *folders, dataset.prefix)
    assert not (tmp_path / "ran").exists()
    assert (result.code, "not what torch.save writes" in result.err) == (65, True), result.err
