"""Which directory is used as a cache: one in which nobody else could have put anything."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lt_preprocess.compiler import cache_directory as module
from lt_preprocess.compiler.cache_directory import cache_directory


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first candidate, with what numba keeps: directories and files in them. There is no other candidate."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "base"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "nowhere")
    directory = tmp_path / "base" / module.NAME / module.source_digest()[:16]
    assert used() == directory
    (directory / "functions").mkdir(mode=0o755)
    for name in ("index.nbi", "functions/code.nbc"):
        (directory / name).touch(0o644)
    return directory


def used() -> Path | None:
    cache_directory.cache_clear()
    try:
        return cache_directory()
    finally:
        cache_directory.cache_clear()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o750])
def test_a_cache_of_ones_own_is_used(mode: int, directory: Path) -> None:
    directory.chmod(mode)
    assert used() == directory


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o710, 0o701])
@pytest.mark.parametrize(("name", "inner"), [("index.nbi", 0o666), ("functions/code.nbc", 0o602), ("functions", 0o777)])
def test_what_others_can_write_to_is_looked_for_where_they_can_enter(
    name: str, inner: int, mode: int, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / name).chmod(inner)
    directory.chmod(mode)
    assert used() is None
    assert f"{directory / name} can be written to by others" in capsys.readouterr().err
    directory.chmod(0o700)
    assert used() == directory


def link_to_a_file(directory: Path, elsewhere: Path) -> Path:
    (elsewhere / "code").touch()
    (directory / "link.nbi").symlink_to(elsewhere / "code")
    return directory / "link.nbi"


def link_to_a_directory(directory: Path, elsewhere: Path) -> Path:
    (directory / "link").symlink_to(elsewhere)
    return directory / "link"


def link_to_nowhere(directory: Path, elsewhere: Path) -> Path:
    (directory / "functions" / "link.nbc").symlink_to("nowhere")
    return directory / "functions" / "link.nbc"


@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("plant", [link_to_a_file, link_to_a_directory, link_to_nowhere])
def test_links_in_a_cache_are_not_followed(
    plant: Callable[[Path, Path], Path], mode: int, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever else may write to what they lead to was not asked about it."""
    link = plant(directory, tmp_path)
    directory.chmod(mode)
    assert used() is None
    assert f"{link} is a symbolic link" in capsys.readouterr().err
