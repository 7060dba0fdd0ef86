"""What a rank leaves out while it imports."""

import gc
import importlib
import os
import subprocess
import sys

import pytest

from lt_train.launch import rank_imports

# A package of Python's that nothing here needs.
PACKAGE = "wave"


def test_a_package_is_absent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    with rank_imports.hide(PACKAGE, "json"):
        with pytest.raises(ImportError):
            importlib.import_module(PACKAGE)
        assert importlib.import_module("json") is sys.modules["json"]
    assert importlib.import_module(PACKAGE).open


def test_a_rank_begins_without_torch() -> None:
    """So that the GPU's context is made while torch is imported, also where its launcher can interrupt it."""
    program = """
import os, socket, sys, tempfile
from lt_train.launch import worker
with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
    launcher.bind(place + "/control")
    launcher.listen()
    os.environ[worker.VARIABLE] = place + "/control"
    worker._connect("cuda", 0)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def test_objects_of_imports_are_not_searched_again() -> None:
    before = gc.get_freeze_count()
    try:
        with rank_imports.pause_collection():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
