"""The files below a directory: links are followed once and never upwards, and what is not read is listed."""

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from lt_shared.files import listing, storage


@pytest.fixture
def bucket() -> Iterator[str]:
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()


def test_files_below_a_directory(tmp_path: Path, bucket: str) -> None:
    for name in ("b", "a/c", "a/.hidden", ".git/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        storage.write_bytes(f"{bucket}/{name}", b"")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    assert listing.files_below(tmp_path) == [str(tmp_path / "a/c"), str(tmp_path / "b")]
    assert listing.list_below(tmp_path).hidden == [str(tmp_path / ".git"), str(tmp_path / "a/.hidden")]
    assert listing.list_below(f"{bucket}/").hidden == ["memory:///bucket/.git/d", "memory:///bucket/a/.hidden"]
    assert listing.files_below(f"{bucket}/") == ["memory:///bucket/a/c", "memory:///bucket/b"]
    assert storage.is_directory(tmp_path)
    assert storage.is_directory(f"{bucket}/")
    assert not storage.is_directory(tmp_path / "b")
    assert not storage.is_directory(f"{bucket}/b")


def test_files_below_a_directory_are_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links that lead upwards are not followed, and pipes not opened; Hugging Face's cache has links to files elsewhere."""
    for name in ("in/deep/a", "in/other/b", "outside/c", "outside/deep/d", "in_too/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    place = tmp_path / "in"
    for link, target in (("up", ".."), ("deep/up", "../.."), ("away", tmp_path / "outside"), ("sibling", "../in_too")):
        (place / link).symlink_to(target)
    (place / "root").symlink_to("/")
    (tmp_path / "outside/deep/up").symlink_to("..")
    (place / "again").symlink_to("deep")
    (place / "file").symlink_to("../outside/c")
    (place / "missing").symlink_to("nowhere")
    os.mkfifo(place / "pipe")
    (place / "pipe2").symlink_to("pipe")
    found = listing.list_below(place)
    assert {os.path.realpath(path) for path in found.files} == {
        str(tmp_path / name) for name in ("in/deep/a", "in/other/b", "outside/c", "outside/deep/d", "in_too/e", "in/nowhere")
    }
    assert found.special == [str(place / "pipe"), str(place / "pipe2")]
    # The directory `deep` is visited under one of its two names.
    upward = [path.replace("/deep/up", "/again/up") for path in found.upward_links]
    assert sorted(upward) == [str(place / name) for name in ("again/up", "away/again/up", "root", "up")]
    assert listing.files_below(place) == found.files
    assert f"{place}/again/up and 5 more: not read" in capsys.readouterr().err.replace("/deep/up", "/again/up")
