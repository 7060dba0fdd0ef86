"""Memory maps without file descriptors, and files that are opened as needed."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lt_shared.console import BadData, IoFailure
from lt_shared.files import mapping
from lt_shared.files.mapping import OpenFiles, identity_of


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_mapping_holds_no_descriptor_and_lives_as_long_as_a_view(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(200)))
    before = descriptors()
    view = mapping.mapped(path)[8:16].view(np.uint32)
    assert (descriptors(), mappings(path)) == (before, 1)
    assert view.tobytes() == bytes(range(8, 16))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del view
    assert mappings(path) == 0


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert mapping.mapped(tmp_path / "empty").shape == (0,)
    with pytest.raises(FileNotFoundError):
        mapping.mapped(tmp_path / "missing")


DTYPES = st.sampled_from([np.int32, np.int64, np.uint8, np.float32])


@given(array=arrays.arrays(DTYPES, arrays.array_shapes(max_dims=3, min_side=0)))
def test_arrays_of_npy_files_are_those_of_numpy(array: npt.NDArray[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("npy") / "array.npy"
    for order in "CF":
        np.save(path, np.asarray(array, order=order))
        found, expected = mapping.mapped_npy(path), np.load(path, mmap_mode="r" if array.size else None)
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_damaged_npy_files(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.arange(100))
    content = path.read_bytes()
    for damaged in (content[:-1], content[:20], b"", b"nothing"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError):
            mapping.mapped_npy(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        mapping.mapped_npy(path)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    files = [tmp_path / str(number) for number in range(8)]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]) * 10)
    return files


def read(files: OpenFiles, path: Path, identity: tuple[int, ...]) -> bytes:
    with files.descriptor(str(path), identity) as descriptor:
        return os.pread(descriptor, 10, 0)


def test_the_last_files_stay_open(paths: list[Path]) -> None:
    files, before = OpenFiles(3), descriptors()
    identities = {path: identity_of(path.stat()) for path in paths}
    for path in (*paths, *reversed(paths)):
        assert read(files, path, identities[path]) == bytes([int(path.name)]) * 10
        assert descriptors() - before <= 3
    for path in paths:
        files.close(str(path))
    assert descriptors() == before


def test_a_file_that_is_read_stays_open(paths: list[Path]) -> None:
    files, first = OpenFiles(1), paths[0]
    with files.descriptor(str(first), identity_of(first.stat())) as descriptor:
        for path in paths[1:]:
            read(files, path, identity_of(path.stat()))
        files.close(str(first))
        assert os.pread(descriptor, 10, 0) == bytes(10)


def test_another_file_at_the_path_is_refused_when_it_is_opened_again(paths: list[Path]) -> None:
    files, first = OpenFiles(1), paths[0]
    identity = identity_of(first.stat())
    read(files, first, identity)
    read(files, paths[1], identity_of(paths[1].stat()))
    replacement = first.with_name("new")
    replacement.write_bytes(b"x" * 10)
    os.replace(replacement, first)
    with pytest.raises(IoFailure, match="another file than at the start"):
        read(files, first, identity)


def test_many_threads_read_what_is_in_the_files(paths: list[Path]) -> None:
    files, wrong = OpenFiles(2), []
    identities = {path: identity_of(path.stat()) for path in paths}

    def work(start: int) -> None:
        for number in range(400):
            path = paths[(start * 3 + number * 5) % len(paths)]
            if read(files, path, identities[path]) != bytes([int(path.name)]) * 10:
                wrong.append(path)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_foreign_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int = 0) -> int:
        raise BadData(f"{path}: a link that another user made")

    monkeypatch.setattr(mapping.ownership, "open_checked", refuse)
    with pytest.raises(BadData):
        mapping.mapped(tmp_path)
