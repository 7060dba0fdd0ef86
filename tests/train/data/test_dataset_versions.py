"""A dataset is known by its content: by all of a small file, by blocks of a large one."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_train.data import dataset_versions

LARGE = dataset_versions.WHOLE_BYTES + 100_000


@pytest.fixture
def dataset(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> Dataset:
    """Without sidecar, as Megatron-LM's tool makes it."""
    made = write_dataset(tmp_path / "web", documents=60)
    Path(f"{made.prefix}.json").unlink()
    return made


def exchange(path: Path) -> None:
    """Put another file of the same size in its place."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("ending", ["bin", "idx"])
@pytest.mark.parametrize("has_sidecar", [False, True])
def test_other_content_of_equal_size(ending: str, has_sidecar: bool, dataset: Dataset, tmp_path: Path) -> None:
    """The sidecar still says what it said before."""
    if has_sidecar:
        checksums = {each: [(tmp_path / f"web.{each}").stat().st_size, 7] for each in ("bin", "idx")}
        (tmp_path / "web.json").write_text(json.dumps({"v": 1, "crc32": checksums}))
    then = dataset_versions.versions([dataset])
    exchange(tmp_path / f"web.{ending}")
    with pytest.raises(BadData, match=f"{dataset.prefix}: is another dataset.*{ending}_samples_crc32 was"):
        dataset_versions.check_unchanged("iter_1", then, dataset_versions.versions([dataset]))


def test_a_run_of_a_version_that_knew_sizes_alone_goes_on(dataset: Dataset, tmp_path: Path) -> None:
    then = {dataset.prefix: {f"{each}_bytes": (tmp_path / f"web.{each}").stat().st_size for each in ("bin", "idx")}}
    exchange(tmp_path / "web.bin")
    dataset_versions.check_unchanged("iter_1", then, dataset_versions.versions([dataset]))


def test_the_same_bytes_are_the_same_dataset(dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    then = dataset_versions.versions([dataset])
    copied = Dataset(str(tmp_path / "moved"), dataset.documents, dataset.tokens, dataset.dtype)
    for ending in ("bin", "idx"):
        shutil.copy(tmp_path / f"web.{ending}", tmp_path / f"moved.{ending}")
        os.utime(tmp_path / f"web.{ending}", (1, 1))
    dataset_versions.check_unchanged("iter_1", then, dataset_versions.versions([dataset]))
    moved = dataset_versions.versions([copied])
    dataset_versions.check_unchanged("iter_1", then, moved)
    dataset_versions.warn_of_others("iter_1", then, moved)
    assert capsys.readouterr().err == ""
    exchange(tmp_path / "moved.bin")
    dataset_versions.warn_of_others("iter_1", then, dataset_versions.versions([copied]))
    assert f"{copied.prefix}: iter_1 was not trained on this dataset" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, LARGE // 2, LARGE - 1])
def test_a_large_file_is_read_in_blocks(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The promise of the module: a change that moves what is behind it is noticed, and the file is not read as a whole."""
    dataset, read = Dataset(str(tmp_path / "big"), 1, LARGE // 2, "uint16"), 0
    content = os.urandom(LARGE)
    (tmp_path / "big.idx").touch()

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal read
        read += count
        return content[offset : offset + count]

    (tmp_path / "big.bin").write_bytes(content)
    monkeypatch.setattr(dataset_versions.os, "pread", pread)
    then = dataset_versions.versions([dataset])
    assert read == dataset_versions.BLOCKS * dataset_versions.BLOCK_BYTES
    content = content[:place] + b"\0" + content[place:-1] if place < LARGE - 1 else content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(BadData):
        dataset_versions.check_unchanged("iter_1", then, dataset_versions.versions([dataset]))
