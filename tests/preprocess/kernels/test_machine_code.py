"""Compiled functions that a disk has damaged are compiled anew, and give the same."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMPILED = """
from lt_preprocess.readers import utf8
from lt_preprocess.tokenizers.base import Texts
print(list(map(int, utf8.invalid(Texts.of([b"a" * 100, b"a" * 50 + b"\\xff" + b"a" * 50])))))
"""
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": lambda content, position: content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :],
    "cut off": lambda content, position: content[:position],
    "zeros at the end": lambda content, position: content[:position].ljust(len(content), b"\0"),
    "longer": lambda content, position: content + content[position:],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("cache")
    assert run(base).stdout == "[1]\n"
    return base


def run(cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_compiled_anew(damage: str, cache: Path) -> None:
    [path] = cache.rglob("utf8._suspect*.o")
    sound = path.read_bytes()
    path.write_bytes(DAMAGE[damage](sound, random.Random(damage).randrange(len(sound))))
    damaged = run(cache)
    assert (damaged.returncode, damaged.stdout) == (0, "[1]\n"), damaged.stderr
    assert f"{path}: not as it was written" in damaged.stderr
    mended = run(cache)
    assert (mended.returncode, mended.stdout, mended.stderr) == (0, "[1]\n", "")


def test_a_missing_file_is_made_again(cache: Path) -> None:
    [path] = cache.rglob("utf8._suspect*.o")
    path.unlink()
    assert run(cache).stdout == "[1]\n"
    assert path.exists()


def test_a_second_run_imports_no_compiler(cache: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    script = COMPILED + "import sys; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "[1]\nFalse\n"
