"""Reading a pickle must run nothing of it."""

import argparse
import collections
import contextlib
import copy
import datetime
import enum
import io
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
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


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"garbage", b"\x80\x04K\x01", b"\x80\x04)R.", b"cos\nsystem\n(S'x'\ntR."])
def test_damaged_pickles_are_one_error(content: bytes) -> None:
    with pytest.raises(BadData, match="not a readable pickle"):
        pickles.loads(content, "file")


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


class WithArguments:
    """Pickled as a call of a class of torch, with arguments and a state."""

    def __init__(self, arguments: tuple[Any, ...], state: Any):
        self.arguments, self.state = arguments, state

    def __reduce__(self) -> Any:
        return MetadataIndex, self.arguments, self.state


def test_what_a_record_keeps() -> None:
    both = pickles.loads(pickle.dumps(WithArguments(("a", 2), {"fqn": "b"})), "file")
    assert (both.arguments, both.fqn, both.state) == (("a", 2), "b", None)
    assert type(both).__name__ == "Record"
    other = pickles.loads(pickle.dumps(WithArguments((), ["state"])), "file")
    assert (other.arguments, other.state) == ((), ["state"])
    named = pickles.loads(pickle.dumps(WithArguments((), {"arguments": "its own"})), "file")
    assert named.arguments == "its own"


def test_a_state_does_not_hide_the_arguments() -> None:
    with pytest.raises(BadData, match="it has a state in place of its arguments"):
        pickles.loads(pickle.dumps(WithArguments(("a",), {"arguments": ["b"]})), "file")


# What checkpoints of Megatron hold beside tensors: options, paths, signals, random states.
@pytest.mark.parametrize(
    ("value", "protocol", "name"),
    [
        (b"bytes", 2, "_codecs.encode"), (io.BytesIO(b"x"), 4, "_io.BytesIO"), (argparse.Namespace(a=1), 4, "argparse.Namespace"),
        (datetime.timedelta(1), 4, "datetime.timedelta"), (enum.FlagBoundary.KEEP, 4, "enum.FlagBoundary"),
        (np.dtype("float64"), 4, "numpy.dtype"), (Path("x"), 4, f"{PosixPath.__module__}.PosixPath"),
        (signal.SIGTERM, 4, "signal.Signals"),
        (types.SimpleNamespace(a=1), 4, "types.SimpleNamespace"), (torch.device("cpu"), 4, "torch.device"),
    ],
)  # fmt: skip
def test_objects_of_known_packages_are_records(value: Any, protocol: int, name: str) -> None:
    found = pickles.loads(pickle.dumps(value, protocol), "file")
    assert isinstance(found, pickles.Record)
    assert found.name == name


@pytest.mark.parametrize("package", ["io", "megatron", "transformer_engine"])
def test_classes_that_are_not_installed_here_are_records(package: str) -> None:
    assert pickles.loads(f"c{package}.x\nThing\n(K\x01tR.".encode(), "file").name == f"{package}.x.Thing"


@pytest.mark.parametrize("module", [".torch", "torc", "torchx", "xtorch", "io_", "os", "importlib", "builtins"])
def test_other_packages_are_refused(module: str) -> None:
    with pytest.raises(BadData, match=f"it refers to {module}.system, which no checkpoint needs"):
        pickles.loads(f"c{module}\nsystem\n(tR.".encode(), "file")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_plain_containers_are_themselves(protocol: int) -> None:
    classes = [dict, list, set, frozenset, tuple]
    assert pickles.loads(pickle.dumps(classes, protocol), "file") == classes
    values = [{1, 2}, frozenset({3}), torch.Size([1, 2]), collections.OrderedDict(a=1)]
    found = pickles.loads(pickle.dumps(values, protocol), "file")
    assert found == [{1, 2}, frozenset({3}), (1, 2), {"a": 1}]
    assert [isinstance(one, kind) for one, kind in zip(found, (set, frozenset, tuple, dict), strict=True)] == [True] * 4


@pytest.mark.parametrize("protocol", range(6))
def test_many_objects_are_numbered(protocol: int) -> None:
    values = [str(number) for number in range(600)]
    assert pickles.loads(pickle.dumps([values, values], protocol), "file") == [values, values]


def load_known(content: bytes, *known: str, **more: Any) -> Any:
    return pickles.load_known(content, set(known), "file", **more)


@pytest.mark.parametrize("read", [pickles.loads, pickles.names, lambda data, origin: load_known(data)])
def test_every_reader_looks_at_the_sizes_first(read: Any) -> None:
    with pytest.raises(BadData, match="file: not a readable pickle: it numbers more objects than it holds"):
        read(b"]r\xff\xff\xff\x7f.", "file")
    with pytest.raises(BadData, match="file: not a readable pickle: invalid load key"):
        read(b"\xff.", "file")


def test_known_names_become_real_objects() -> None:
    found = load_known(pickle.dumps([datetime.timedelta(3), 7]), "datetime.timedelta")
    assert found == [datetime.timedelta(3), 7]


@pytest.mark.parametrize("protocol", range(6))
def test_real_members_of_enumerations(protocol: int) -> None:
    content = pickle.dumps(Malicious(getattr, WriteItemType, "TENSOR"), protocol)
    assert load_known(content, f"{WriteItemType.__module__}.WriteItemType") is WriteItemType.TENSOR
    assert pickles.names(content, "file") == {f"{WriteItemType.__module__}.WriteItemType"}
    assert pickles.loads(content, "file").arguments == ("TENSOR",)


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (pickle.dumps(datetime.timedelta(3)), "datetime.datetime"),
        (pickle.dumps(os.system), "os.system"),
        (b"c__builtin__\neval\n.", "__builtin__.eval"),
        (b"ccopy_reg\n_reconstructor\n.", "copyreg._reconstructor"),
    ],
)
def test_unknown_names_are_not_looked_up(content: bytes, known: str) -> None:
    with pytest.raises(BadData, match=r"file: not a readable pickle: it refers to .*, which no checkpoint needs") as caught:
        load_known(content, known)
    assert caught.value.hint == "do not load it: it may run code"


def test_a_known_name_is_looked_up_as_it_is() -> None:
    """Not as what Python 2 called so."""
    with pytest.raises(BadData, match="No module named 'copy_reg'"):
        load_known(b"ccopy_reg\n_reconstructor\n.", "copy_reg._reconstructor")


def test_objects_outside_of_a_pickle() -> None:
    assert load_known(b"\x80\x02X\x01\0\0\0aQ.", persistent_load=str.upper) == "A"
    with pytest.raises(BadData, match="file: not a readable pickle: it refers to an object outside of it"):
        load_known(b"\x80\x02X\x01\0\0\0aQ.")


NOT_AN_ENUMERATION = "it calls getattr on something other than an enumeration"


@pytest.mark.parametrize("attack", [({}, "get"), (dict, "fromkeys"), (Path("x"), "unlink")])
@pytest.mark.parametrize("read", [pickles.loads, pickles.names])
def test_getattr_takes_nothing_from_other_objects(read: Any, attack: tuple[Any, str]) -> None:
    with pytest.raises(BadData, match=NOT_AN_ENUMERATION):
        read(pickle.dumps(Malicious(getattr, *attack)), "file")


@pytest.mark.parametrize("name", ["_TENSOR", "__class__", "_"])
def test_members_of_enumerations_are_public(name: str) -> None:
    with pytest.raises(BadData, match=NOT_AN_ENUMERATION):
        pickles.loads(pickle.dumps(Malicious(getattr, WriteItemType, name)), "file")
    assert pickles.loads(pickle.dumps(Malicious(getattr, WriteItemType, "TENSOR_")), "file").arguments == ("TENSOR_",)


@pytest.mark.parametrize("attack", [({}, "get"), (dict, "fromkeys"), (WriteItemType, "mro"), (WriteItemType, "__class__")])
def test_getattr_takes_no_real_attribute(attack: tuple[Any, str]) -> None:
    with pytest.raises(BadData, match=NOT_AN_ENUMERATION):
        load_known(pickle.dumps(Malicious(getattr, *attack)), "builtins.dict", f"{WriteItemType.__module__}.WriteItemType")


class Thermometer(enum.Enum):
    COLD = 1


@pytest.mark.parametrize(
    "changing",
    [
        b"cpathlib\nPosixPath\nN}X\x07\0\0\0is_filecbuiltins\ndict\ns\x86b",
        b"cpathlib\nPosixPath\nN}X\x09\0\0\0brand_newK\x01s\x86b",
        b"c%s\nThermometer\nK\x01\x85R}X\x07\0\0\0_value_K\x07sb" % __name__.encode(),
    ],
)
def test_a_pickle_that_changes_a_class_is_refused_and_undone(changing: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is given to a class, or to the member of an enumeration, would hold for the whole process."""
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(Thermometer=Thermometer))
    before = pathlib.PosixPath.is_file
    known = {"pathlib.PosixPath", "builtins.dict", f"{__name__}.Thermometer"}
    with pytest.raises(BadData, match="it changes a class"):
        pickles.load_known(b"\x80\x02" + changing + b".", known, "object")
    assert pathlib.PosixPath.is_file is before
    assert not hasattr(pathlib.PosixPath, "brand_new")
    assert Thermometer.COLD.value == 1


class Sample:
    pass


class Described:
    """Python adds `__annotations__` and `__slotnames__` to the class when an object sets its state."""

    def __setstate__(self, state: Any) -> None:
        assert not type(self).__annotations__
        copy.copy(self)


@pytest.fixture
def classes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(Sample=Sample, Described=Described))


@pytest.mark.parametrize("attribute", ["__abstractmethods__", "__annotations__", "__slotnames__"])
@pytest.mark.usefixtures("classes_here")
def test_an_attribute_that_python_may_add_to_a_class_does_not_stay(attribute: str) -> None:
    """Of a class with `__abstractmethods__` no object could be made any more."""
    key = b"X" + len(attribute).to_bytes(4, "little") + attribute.encode()
    changing = b"c%s\nSample\nN}" % __name__.encode() + key + b"cbuiltins\nfrozenset\n(X\x01\0\0\0xl\x85Rs\x86b."
    with contextlib.nullcontext() if attribute != "__abstractmethods__" else pytest.raises(BadData, match="it changes a class"):
        load_known(changing, "builtins.frozenset", f"{__name__}.Sample")
    assert attribute not in vars(Sample)
    assert isinstance(Sample(), Sample)


@pytest.mark.usefixtures("classes_here")
def test_a_class_to_which_python_adds_attributes_is_read() -> None:
    content = b"c%s\nDescribed\n)R}X\x01\0\0\0aK\x01sb." % __name__.encode()
    assert isinstance(load_known(content, f"{__name__}.Described"), Described)


@pytest.mark.usefixtures("classes_here")
def test_an_attribute_that_a_call_removes_is_set_again() -> None:
    method = Described.__setstate__
    remove = lambda described: delattr(described, "__setstate__")  # noqa: E731
    content = b"ctorch\nremove\nc%s\nDescribed\n\x85R." % __name__.encode()
    with pytest.raises(BadData, match="it changes a class"):
        load_known(content, f"{__name__}.Described", "torch.remove", stand_ins={"torch.remove": remove})
    assert Described.__setstate__ is method


def test_sizes_are_numbers_and_nothing_else() -> None:
    """An index of torch's compares its sizes, and other objects among them would be compared as well."""
    index = pickle.dumps(MetadataIndex("weight", torch.Size([2, 3])), 2)
    assert pickles.loads(index, "file").offset == (2, 3)
    size = b"ctorch\nSize\n"
    assert size in index and index.count(b"K\x02K\x03\x86") == 1
    with pytest.raises(BadData, match="of tuples that are not sizes"):
        pickles.loads(index.replace(b"K\x02K\x03\x86", b"K\x02)\x86"), "file")


def test_attributes_of_a_function_stay() -> None:
    changing = b"\x80\x02cshutil\nrmtree\n}X\x07\0\0\0avoids_K\x01sb."
    with pytest.raises(BadData):
        pickles.load_known(changing, {"shutil.rmtree"}, "object")
    assert not hasattr(shutil.rmtree, "avoids_")


def test_a_class_is_made_once_and_no_pickle_changes_it() -> None:
    named = b"ctorch\nFancy\n"
    first, again = pickles.loads(b"(" + named + named + b"t.", "file")
    assert first is again
    for state in (b"}X\x04\x00\x00\x00nameK\x01s", b"N}X\x04\x00\x00\x00nameK\x01s\x86"):
        with pytest.raises(BadData):
            pickles.loads(named + state + b"b.", "file")
    assert pickles.loads(named + b".", "file").name == "torch.Fancy"
