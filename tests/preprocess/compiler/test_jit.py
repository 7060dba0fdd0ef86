"""Compiling is announced, done once, and possible where nothing can be written."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pseudo_terminal
import pytest
import tokenizers

from lt_preprocess.compiler import jit
from lt_preprocess.compiler.jit import cache_directory, kernel

Run = Callable[..., subprocess.CompletedProcess[str]]

INVALID = """
from lt_preprocess.readers import utf8
from lt_preprocess.texts import Texts
print(list(map(int, utf8.invalid(Texts.from_list([b"a" * 100, b"a" * 50 + b"\\xff" + b"a" * 50])))))
"""
DOCUMENT = '{"text": "a b c"}\n'


@pytest.fixture(scope="module")
def filled(run: Run, tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Path) -> Path:
    """This user's cache, after a run."""
    directory = tmp_path_factory.mktemp("first")
    assert run("-", "--tokenizer", demo_tokenizer, "-o", directory / "out", input=DOCUMENT).returncode == 0
    cache = cache_directory()
    assert cache is not None
    return cache


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A cache that lacks two kernels, which are compiled in some seconds; the encoder would take three times as long."""
    directory = tmp_path / "cache/lt-preprocess" / filled.name
    directory.mkdir(parents=True, mode=0o700)
    for path in filled.glob("*.o"):
        if not path.name.startswith(("json_scan.", "assembly.")):
            shutil.copy(path, directory)
    return tmp_path / "cache"


def test_compiled_once_and_announced(run: Run, tmp_path: Path, cache: Path, demo_tokenizer: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    arguments = ["-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    first = run(*arguments, env=environment, input=DOCUMENT)
    assert first.returncode == 0
    assert first.stderr.count("compiling the encoder for this processor, once, 5 to 20 s: cached in ") == 1
    assert str(cache) in first.stderr
    second = run(*arguments, "--force", env=environment, input=DOCUMENT)
    assert second.returncode == 0
    assert "compiling" not in second.stderr


def test_without_a_writable_directory(run: Run, tmp_path: Path) -> None:
    """A file where the directory should be stands in for a read-only one: root may write anywhere.

    The tokenizer is one that its library encodes: most of the time would go to the compilation of an encoder.
    """
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(obstacle), "XDG_CACHE_HOME": str(obstacle), "HOME": str(obstacle)}
    result = run("-", "--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "out", env=environment, input=DOCUMENT)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("set NUMBA_CACHE_DIR") == 1


def test_a_terminal_shows_that_it_still_compiles(tmp_path: Path, cache: Path, demo_tokenizer: Path) -> None:
    command = [Path(sys.executable).parent / "lt-preprocess", "-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = pseudo_terminal.run(command, columns=200, environment=environment, input=DOCUMENT)
    assert done.code == 0
    seconds = {int(found) for found in re.findall(r"compiling, 5 to 20 s:[^\r\n]*?0:00:(\d\d)", done.shown)}
    assert {0, 1} <= seconds


def test_an_interrupt_does_not_wait_for_the_compiler(tmp_path: Path, cache: Path, demo_tokenizer: Path) -> None:
    """And the cursor, which the stopwatch hides, is back."""
    command = [Path(sys.executable).parent / "lt-preprocess", "-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    sent = []

    def interrupt(process: pseudo_terminal.Process, shown: bytes) -> None:
        if b"0:00:01" in shown and not sent:
            process.send_signal(signal.SIGINT)
            sent.append(signal.SIGINT)

    done = pseudo_terminal.run(command, columns=200, environment=environment, input=DOCUMENT, on_output=interrupt)
    assert (done.code, done.other) == (130, "")
    assert done.shown.endswith("lt-preprocess: error: interrupted\r\n")
    assert done.shown.rfind("\x1b[?25h") > done.shown.rfind("\x1b[?25l") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_interrupt_while_the_stopwatch_starts_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Interrupted:
        def __init__(self, title: str) -> None:
            pass

        def __enter__(self) -> None:
            calls.append("started")
            raise KeyboardInterrupt

        def __exit__(self, *error: object) -> None:
            calls.append("stopped")

    monkeypatch.setattr(jit, "Stopwatch", Interrupted)
    monkeypatch.setattr(jit.AnnounceCompilation, "_announced", False)
    with pytest.raises(KeyboardInterrupt), jit.AnnounceCompilation():
        jit.AnnounceCompilation.announce()
    assert calls == ["started", "stopped"]


@pytest.mark.parametrize(
    "name", ["compiler/jit", "compiler/intrinsics", "compiler/simd", "tokenizers/bpe/encoder", "cli/datasets"]
)
def test_a_change_of_any_source_changes_the_digest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    current = jit.source_digest()
    source = Path(jit.__file__).parents[1] / f"{name}.py"
    changed = source.read_bytes() + b"\n"
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: changed if path == source else original(path))
    assert jit.source_digest() != current


def test_the_machine_code_of_a_changed_intrinsic_is_not_used(tmp_path: Path) -> None:
    """The function that calls it lies in another file, which has not changed."""
    import lt_preprocess

    package = tmp_path / "source" / "lt_preprocess"
    shutil.copytree(Path(lt_preprocess.__file__).parent, package)
    environment = os.environ | {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def invalid_texts() -> str:
        return subprocess.run([sys.executable, "-c", INVALID], env=environment, check=True, capture_output=True, text=True).stdout

    simd = package / "compiler" / "simd.py"
    sound = simd.read_text()
    broken = sound.replace("return builder.bitcast(_any_of(builder, errors), integer(64))", "return ir.Constant(integer(64), 0)")
    assert broken != sound
    simd.write_text(broken)
    assert invalid_texts() == "[]\n"
    simd.write_text(sound)
    assert invalid_texts() == "[1]\n"


def test_a_full_disk_keeps_nothing_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lt_preprocess.compiler import jit, machine_code

    def no_space(path: Path, code: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jit, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(machine_code, "write", no_space)

    @jit.kernel
    def twice(number: int) -> int:
        return 2 * number

    @jit.kernel
    def thrice(number: int) -> int:
        return 3 * number

    assert (twice(-2), thrice(5)) == (-4, 15)
    assert capsys.readouterr().err.count(f"{tmp_path}: no space left on device: the compiled encoder is used but not cached") == 1
    assert not list(tmp_path.iterdir())


def test_what_numba_compiles_for_others_is_as_it_was() -> None:
    """In a notebook, before and after a kernel is compiled, with functions that both use."""
    import numba

    from lt_preprocess.compiler import jit

    def largest(values: "np.ndarray[Any, np.dtype[np.int64]]") -> int:
        found = 0
        for value in values:
            found = max(found, value)
        return found

    @jit.kernel
    def larger(first: int, second: int) -> int:
        return max(first, second)

    values = np.arange(10)
    assert numba.njit(largest)(values) == 9
    assert larger(3, 4) == 4
    assert numba.njit(largest)(values) == 9
    assert numba.njit(lambda: np.arange(3).sum() + max(1, 2))() == 5


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_integers_reach_compiled_code_and_come_back(value: int) -> None:
    assert both(value, np.uint64(value % 2**64), value > 0) == (value, value)


@kernel
def both(signed: int, unsigned: np.uint64, is_positive: bool) -> tuple[int, int]:
    return (np.int64(unsigned), signed if is_positive == (signed > 0) else 7)  # type: ignore[return-value]


class Pair(NamedTuple):
    numbers: "np.ndarray[Any, np.dtype[Any]]"
    factor: int


@kernel
def scale(pair: Pair, bits: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
    for row in range(pair.numbers.shape[0]):
        for column in range(pair.numbers.shape[1]):
            pair.numbers[row, column] *= pair.factor
            bits[row] = True


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_arrays_and_named_tuples(dtype: type) -> None:
    numbers, bits = np.arange(6, dtype=dtype).reshape(2, 3), np.zeros(2, np.bool_)
    scale(Pair(numbers, 3), bits)
    assert numbers.tolist() == [[0, 3, 6], [9, 12, 15]]
    assert bits.all()
    with pytest.raises(ValueError, match="not contiguous"):
        scale(Pair(numbers.T, 3), bits)
    with pytest.raises(ValueError, match="another byte order"):
        scale(Pair(numbers.astype(numbers.dtype.newbyteorder()), 3), bits)
