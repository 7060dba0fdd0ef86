"""Compiled functions that a disk has damaged are compiled anew, and give the same."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.compiler import jit
from lt_preprocess.readers import utf8
from lt_preprocess.texts import Texts

COMPILED = """
from lt_preprocess.readers import utf8
from lt_preprocess.texts import Texts
print(list(map(int, utf8.invalid(Texts.from_list([b"a" * 100, b"a" * 50 + b"\\xff" + b"a" * 50])))))
"""
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": lambda content, position: content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :],
    "cut off": lambda content, position: content[:position],
    "zeros at the end": lambda content, position: content[:position].ljust(len(content), b"\0"),
    "longer": lambda content, position: content + content[position:],
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jit, "cache_directory", lambda: tmp_path)
    return tmp_path


def sum_with(number: int) -> int:
    """Add 1 to a number in a kernel, which each call declares anew, as a new process does."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(f"def add(value: int) -> int:\n    return value + {number}", names)
    result: int = jit.kernel(names["add"])(1)
    return result


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_compiled_anew(damage: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # One entry point for each case: this process keeps all that it has loaded.
    number = 1000 + list(DAMAGE).index(damage)
    assert sum_with(number) == number + 1
    [path] = cache.iterdir()
    sound = path.read_bytes()
    path.write_bytes(DAMAGE[damage](sound, random.Random(damage).randrange(len(sound))))
    capsys.readouterr()
    assert sum_with(number) == number + 1
    assert f"{path}: not as it was written" in capsys.readouterr().err
    assert sum_with(number) == number + 1
    assert capsys.readouterr().err == ""
    assert [path] == [*cache.iterdir()]


def test_a_missing_file_is_made_again(cache: Path) -> None:
    assert sum_with(2000) == 2001
    [path] = cache.iterdir()
    path.unlink()
    assert sum_with(2000) == 2001
    assert path.exists()


def test_a_second_run_imports_no_compiler() -> None:
    utf8.invalid(Texts.from_list([b"a"]))
    script = COMPILED + "import sys; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[1]\nFalse\n"
