"""Reading a pickle must run nothing of it."""

import argparse
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from lt_shared import pickles
from lt_shared.console import BadData


class Malicious:
    def __init__(self, function: Any, *arguments: Any):
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, pickle.loads])
def test_foreign_functions_are_refused(function: Any, protocol: int) -> None:
    with pytest.raises(BadData, match="file: not a readable pickle: it refers to"):
        pickles.loads(pickle.dumps(Malicious(function, "x"), protocol), "file")


def test_functions_inside_allowed_packages_are_not_called(tmp_path: Path) -> None:
    torch.save([1], tmp_path / "inner.pt")
    found = pickles.loads(pickle.dumps(Malicious(torch.load, str(tmp_path / "inner.pt"))), "file")
    assert isinstance(found, pickles.Record)
    assert found.arguments == (str(tmp_path / "inner.pt"),)


def test_dotted_names_do_not_reach_other_modules(tmp_path: Path) -> None:
    # protocol 4, the global "torch" "os.system", called with a command
    content = b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93\x8c" + bytes([len(f"touch {tmp_path}/x")])
    content += f"touch {tmp_path}/x".encode() + b"\x85R."
    assert isinstance(pickles.loads(content, "file"), pickles.Record)
    assert not (tmp_path / "x").exists()


def test_torch_objects_become_records() -> None:
    index = pickles.loads(pickle.dumps(MetadataIndex("key", torch.Size([1, 2]))), "file")
    assert (index.name, index.fqn, index.offset) == ("torch.distributed.checkpoint.metadata.MetadataIndex", "key", (1, 2))


def test_the_attributes_of_a_modules_state_dict_are_dropped(tmp_path: Path) -> None:
    state = torch.nn.LayerNorm(2).state_dict()
    torch.save(state, tmp_path / "model.pt")
    assert list(pickles.load_torch_file(tmp_path / "model.pt")) == list(state)


def test_arguments_keep_their_values(tmp_path: Path) -> None:
    torch.save(
        {"args": argparse.Namespace(num_layers=2, params_dtype=torch.bfloat16), "t": torch.ones(2)}, tmp_path / "common.pt"
    )
    found = pickles.load_torch_file(tmp_path / "common.pt")
    assert vars(found["args"])["num_layers"] == 2


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"garbage", b"\x80\x04K\x01", b"\x80\x04)R.", b"cos\nsystem\n(S'x'\ntR."])
def test_damaged_pickles_are_one_error(content: bytes) -> None:
    with pytest.raises(BadData, match="not a readable pickle"):
        pickles.loads(content, "file")


def test_damaged_torch_files_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(BadData, match="not a torch file"):
        pickles.load_torch_file(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(BadData, match=r"it has no data\.pkl"):
        pickles.load_torch_file(tmp_path / "zip")


def test_enumerations_of_a_newer_megatron_are_inert() -> None:
    assert pickles.loads(b"cmegatron.core.enums\nNotYetInvented\n(K\x01tR.", "file").arguments == (1,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_names_are_listed(protocol: int) -> None:
    content = pickle.dumps({"a": MetadataIndex("key", torch.Size([1])), "b": torch.float32}, protocol)
    assert {"torch.distributed.checkpoint.metadata.MetadataIndex", "torch.Size", "torch.float32"} <= pickles.names(
        content, "file"
    )
    with pytest.raises(BadData, match="file: not a readable pickle"):
        pickles.names(content[:-5], "file")


def test_getattr_takes_members_of_enumerations_and_nothing_else() -> None:
    class Member:
        def __reduce__(self) -> Any:
            return getattr, (WriteItemType, "TENSOR")

    content = pickle.dumps({"kind": Member()})
    assert pickles.names(content, "file") == {"torch.distributed.checkpoint.planner.WriteItemType"}
    assert pickles.loads(content, "file")["kind"].arguments == ("TENSOR",)
    for attack in ((WriteItemType, "__init_subclass__"), ({}, "get"), (torch.Size([1]), "count"), (Member(), "name")):
        content = pickle.dumps(Malicious(getattr, *attack))
        with pytest.raises(BadData, match="not a readable pickle"):
            pickles.names(content, "file")


def test_a_member_of_an_enumeration_cannot_be_called() -> None:
    content = pickle.dumps(Malicious(getattr, WriteItemType, "TENSOR"))
    called = content[:-1] + b")R."
    with pytest.raises(BadData, match="not a readable pickle"):
        pickles.names(called, "file")


def stored(tmp_path: Path) -> bytes:
    torch.save([1], tmp_path / "plain.pt")
    return (tmp_path / "plain.pt").read_bytes()


def test_an_archive_behind_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    """zipfile reads the archive, torch.load would run the pickle in front of it."""
    content = pickle.dumps(Malicious(os.system, "true")) + stored(tmp_path)
    assert zipfile.is_zipfile(io.BytesIO(content))
    with pytest.raises(BadData, match="not a torch file"):
        pickles.torch_pickle(io.BytesIO(content), "file")


def test_a_second_pickle_in_the_archive_is_refused(tmp_path: Path) -> None:
    """torch.load picks by the name of the archive's first folder, which need not be the first data.pkl."""
    path = tmp_path / "two.pt"
    path.write_bytes(stored(tmp_path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Malicious(os.system, "true")))
    with pytest.raises(BadData, match="it holds 2 pickles"):
        pickles.load_torch_file(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\x00\x00\x00\x10.",
        b"\x80\x02]r\xff\xff\xff\xff.",
        b"(lp2147483647\n.",
        b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02B\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",
    ],
)
def test_a_small_pickle_takes_little_memory(data: bytes) -> None:
    """In a process of its own with 2 GB: an ordinary unpickler reserves what the pickle says."""
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from lt_shared import console, pickles
try:
    pickles.loads(sys.stdin.buffer.read(), "file")
except console.BadData as error:
    print(error)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) < 600_000)
"""
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == b"True"


VALUES = st.recursive(
    st.integers() | st.text() | st.binary() | st.floats(), lambda inner: st.lists(inner) | st.tuples(inner, inner), max_leaves=10
)


@given(VALUES, st.integers(0, 5))
def test_what_python_writes_is_read(value: Any, protocol: int) -> None:
    pickled = pickle.dumps([value, value], protocol)
    try:
        found = pickles.loads(pickled, "file")
    except BadData:
        # Protocols before 3 call a function of another package for bytes.
        assert protocol < 3
        return
    assert protocol < 3 or repr(found) == repr([value, value])
