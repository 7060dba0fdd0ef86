"""Compiling is announced, done once, and possible where nothing can be written."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

DOCUMENT = '{"text": "a b c"}\n'


def test_compiled_once_and_announced(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    arguments = ["-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    first = run(*arguments, env=environment, input=DOCUMENT)
    assert first.returncode == 0
    assert first.stderr.count("compiling the encoder, once") == 1
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


@pytest.mark.parametrize("name", ["compilation", "bpe"])
def test_changed_sources_get_a_directory_of_their_own(name: str) -> None:
    from lt_preprocess import compilation

    current = compilation.cache_directory()
    source = Path(compilation.__file__).with_name(f"{name}.py")
    changed = source.read_bytes() + b"\n"
    with pytest.MonkeyPatch.context() as patch:
        original = Path.read_bytes
        patch.setattr(Path, "read_bytes", lambda path: changed if path == source else original(path))
        compilation.cache_directory.cache_clear()
        other = compilation.cache_directory()
    compilation.cache_directory.cache_clear()
    assert current is not None
    assert other is not None
    assert other != current
    other.rmdir()


def test_a_full_disk_keeps_nothing_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lt_preprocess import compilation

    class Cache:
        def save_overload(self, signature: object, data: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Dispatcher:
        _cache = Cache()

    dispatcher = Dispatcher()
    compilation._continue_when_not_kept(dispatcher, tmp_path)
    dispatcher._cache.save_overload("signature", "data")
    dispatcher._cache.save_overload("signature", "data")
    assert capsys.readouterr().err.count(f"{tmp_path}: no space left on device: the compiled encoder is used but not kept") == 1
