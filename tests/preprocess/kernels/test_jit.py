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

import pseudo_terminal
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

INVALID = """
from lt_preprocess.readers import utf8
from lt_preprocess.tokenizers.base import Texts
print(list(map(int, utf8.invalid(Texts.of([b"a" * 100, b"a" * 50 + b"\\xff" + b"a" * 50])))))
"""
DOCUMENT = '{"text": "a b c"}\n'


def test_compiled_once_and_announced(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    arguments = ["-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    first = run(*arguments, env=environment, input=DOCUMENT)
    assert first.returncode == 0
    assert first.stderr.count("compiling the encoder for this processor, once, 10 to 40 s: cached in ") == 1
    assert str(tmp_path / "cache") in first.stderr
    second = run(*arguments, env=environment, input=DOCUMENT)
    assert second.returncode == 0
    assert "compiling" not in second.stderr


def test_without_a_writable_directory(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    """A file where the directory should be stands in for a read-only one: root may write anywhere."""
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(obstacle), "XDG_CACHE_HOME": str(obstacle), "HOME": str(obstacle)}
    result = run("-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", env=environment, input=DOCUMENT)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("set NUMBA_CACHE_DIR") == 1


def test_a_terminal_shows_that_it_still_compiles(tmp_path: Path, demo_tokenizer: Path) -> None:
    command = [Path(sys.executable).parent / "lt-preprocess", "-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = pseudo_terminal.run(command, columns=200, environment=environment, input=DOCUMENT)
    assert done.code == 0
    seconds = {int(found) for found in re.findall(r"compiling, 10 to 40 s:[^\r\n]*?0:00:(\d\d)", done.shown)}
    assert {0, 1, 2} <= seconds


def test_an_interrupt_does_not_wait_for_the_compiler(tmp_path: Path, demo_tokenizer: Path) -> None:
    """And the cursor, which the stopwatch hides, is back."""
    command = [Path(sys.executable).parent / "lt-preprocess", "-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
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


@pytest.mark.parametrize("name", ["kernels/jit", "kernels/intrinsics", "kernels/simd", "tokenizers/bpe/encoder", "cli/datasets"])
def test_a_change_of_any_source_changes_the_digest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lt_preprocess.kernels import jit

    current = jit.source_digest()
    source = Path(jit.__file__).parents[1] / f"{name}.py"
    changed = source.read_bytes() + b"\n"
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: changed if path == source else original(path))
    assert jit.source_digest() != current


def test_the_machine_code_of_a_changed_intrinsic_is_not_used(tmp_path: Path) -> None:
    """The function that calls it lies in another file, which is all that numba looks at."""
    import lt_preprocess

    package = tmp_path / "source" / "lt_preprocess"
    shutil.copytree(Path(lt_preprocess.__file__).parent, package)
    environment = os.environ | {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def invalid_texts() -> str:
        return subprocess.run([sys.executable, "-c", INVALID], env=environment, check=True, capture_output=True, text=True).stdout

    simd = package / "kernels" / "simd.py"
    sound = simd.read_text()
    broken = sound.replace("return builder.bitcast(_any_of(builder, errors), UINT64)", "return ir.Constant(UINT64, 0)")
    assert broken != sound
    simd.write_text(broken)
    assert invalid_texts() == "[]\n"
    simd.write_text(sound)
    assert invalid_texts() == "[1]\n"


def test_a_full_disk_keeps_nothing_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lt_preprocess.kernels import jit

    class Cache:
        def save_overload(self, signature: object, data: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Dispatcher:
        _cache = Cache()

    dispatcher = Dispatcher()
    jit._survive_a_full_disk(dispatcher, tmp_path)
    dispatcher._cache.save_overload("signature", "data")
    dispatcher._cache.save_overload("signature", "data")
    assert capsys.readouterr().err.count(f"{tmp_path}: no space left on device: the compiled encoder is used but not cached") == 1
