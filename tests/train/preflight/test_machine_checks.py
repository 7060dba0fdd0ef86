import ctypes
import dataclasses
import py_compile
import resource
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from situations import said, situation

from lt_train.config.draft import Draft
from lt_train.preflight import machine_checks
from lt_train.preflight.check_interface import Situation


def on_gpus(where: Situation) -> Situation:
    assert where.config
    plan = dataclasses.replace(where.config, parallelism=dataclasses.replace(where.config.parallelism, device="cuda"))
    return dataclasses.replace(where, draft=Draft(vars(plan)))


def test_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, messages in ((1024, 1), (65536, 0)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        assert len(said(machine_checks.open_files, situation(tmp_path, nodes=2))) == messages
    assert said(machine_checks.open_files, situation(tmp_path))[0].startswith("not checked")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = on_gpus(situation(tmp_path))
    assert "is not there" in said(machine_checks.shared_memory, here)[0]
    (tmp_path / "dev/shm").mkdir(parents=True)
    for mib, messages in ((64, 1), (8192, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, mib=mib: SimpleNamespace(total=mib * 2**20))
        assert len(said(machine_checks.shared_memory, here)) == messages


def test_rendezvous_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rank = {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        assert f"port {port} is taken" in said(machine_checks.rendezvous_port, situation(tmp_path, RANK="0", **rank))[0]
        assert not said(machine_checks.rendezvous_port, situation(tmp_path, RANK="1", **rank))
    assert not said(machine_checks.rendezvous_port, situation(tmp_path, RANK="0", **rank))
    low = rank | {"MASTER_PORT": "80"}
    assert "needs root" in said(machine_checks.rendezvous_port, situation(tmp_path, RANK="0", **low))[0]
    nowhere = rank | {"MASTER_ADDR": "no-such-host.invalid"}
    assert "has no address" in said(machine_checks.rendezvous_port, situation(tmp_path, RANK="0", **nowhere))[0]


def test_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "large_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine_checks, "LARGE_PACKAGES", ("large_package", "not_there"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    here = situation(tmp_path)
    assert not said(machine_checks.bytecode, here)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "of/all"))
    assert not said(machine_checks.bytecode, here)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (told,) = said(machine_checks.bytecode, here)
    assert "PYTHONDONTWRITEBYTECODE" in told and "compiles large_package anew" in told
    py_compile.compile(str(package / "__init__.py"))
    assert not said(machine_checks.bytecode, here)


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer is made up: a word of status bits at its place in the structure."""
    for status, messages in ((0x2001, 0), (0x2041, 1)):

        def adjtimex(state: ctypes.Array[ctypes.c_char], status: int = status) -> int:
            ctypes.c_int.from_buffer(state, 40).value = status
            return 0

        monkeypatch.setattr(ctypes, "CDLL", lambda name, call=adjtimex: SimpleNamespace(adjtimex=call))
        assert len(said(machine_checks.clock, situation(tmp_path, nodes=2))) == messages


def test_preloaded_libraries(tmp_path: Path) -> None:
    there = tmp_path / "libnccl.so"
    there.touch()
    assert not said(machine_checks.preloaded_libraries, situation(tmp_path, LD_PRELOAD=str(there)))
    missing = situation(tmp_path, LD_PRELOAD=f"{there}:/usr/local/cuda-12.1/lib/libnccl.so")
    assert "LD_PRELOAD=/usr/local/cuda-12.1/lib/libnccl.so: is not there" in said(machine_checks.preloaded_libraries, missing)[0]
