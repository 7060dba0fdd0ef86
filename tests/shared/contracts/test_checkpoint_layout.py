"""Only complete checkpoints are loaded, and what is wrong with the others is said."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import BadData, NoInput
from lt_shared.contracts import checkpoint_layout as layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Tokenizer
from lt_shared.models.presets import preset

RECORD = RunRecord(
    architecture=preset("llama3.2-1b"),
    padded_vocab_size=128256,
    iteration=10,
    consumed_samples=80,
    tokenizer=Tokenizer("llama3", "abc", "/tok"),
    dtype="bfloat16",
    versions={"torch": "2"},
    files={},
    loss=2.5,
)


def make_checkpoint(directory: Path, record: RunRecord | None = RECORD) -> Path:
    directory.mkdir(parents=True)
    for name, size in ((".metadata", 30), ("__0_0.distcp", 100), ("__1_0.distcp", 200), ("common.pt", 10)):
        (directory / name).write_bytes(bytes(size))
    if record:
        record.write(directory)
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for iteration in (5, 10):
        make_checkpoint(layout.iteration_directory(tmp_path, iteration))
    layout.write_tracker(tmp_path, 10)
    return tmp_path


@pytest.mark.parametrize("tokenizer", [Tokenizer("llama3", "abc"), None])
@pytest.mark.parametrize("loss", [2.5, None])
def test_the_record_reads_back_with_the_sizes_of_the_files(
    tmp_path: Path, tokenizer: Tokenizer | None, loss: float | None
) -> None:
    record = dataclasses.replace(RECORD, tokenizer=tokenizer, loss=loss)
    directory = make_checkpoint(tmp_path / "iter_0000010", record)
    sizes = {".metadata": 30, "__0_0.distcp": 100, "__1_0.distcp": 200, "common.pt": 10}
    assert RunRecord.read(directory) == dataclasses.replace(record, files=sizes)


def test_files_in_subdirectories_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/vocab.json").write_bytes(b"{}")
    RECORD.write(tmp_path)
    assert RunRecord.read(tmp_path).files == {"tokenizer/vocab.json": 2}


def test_a_complete_checkpoint(run: Path) -> None:
    assert layout.damage(run / "iter_0000010") is None
    assert layout.resolve_checkpoint_directory(run) == run / "iter_0000010"
    assert layout.resolve_checkpoint_directory(run / "iter_0000005") == run / "iter_0000005"
    assert layout.checkpoints(run) == [run / "iter_0000010", run / "iter_0000005"]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "common.pt"])
def test_a_missing_or_truncated_file_is_damage(run: Path, name: str) -> None:
    path = run / "iter_0000010" / name
    size = path.stat().st_size
    path.write_bytes(bytes(size - 1))
    expected = f"{path}: {size - 1} bytes, expected {size}"
    assert layout.damage(path.parent) == expected
    with pytest.raises(BadData, match=expected):
        layout.resolve_checkpoint_directory(run)
    path.unlink()
    assert layout.damage(path.parent) == f"{path}: missing"
    with pytest.raises(BadData, match="missing"):
        layout.resolve_checkpoint_directory(run)


def test_a_missing_directory_that_the_tracker_names(run: Path) -> None:
    layout.write_tracker(run, 15)
    with pytest.raises(BadData, match="iter_0000015"):
        layout.resolve_checkpoint_directory(run)


def test_a_checkpoint_of_another_trainer_has_no_record(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "iter_0000001", record=None)
    assert layout.damage(directory) is None
    with pytest.raises(NoInput, match=r"run\.json: no such file"):
        RunRecord.read(directory)
    for shard in directory.glob("*.distcp"):
        shard.unlink()
    assert layout.damage(directory) == f"{directory}: has no .distcp file"


def malformed(change: dict[str, Any]) -> str:
    record = {"v": 1, **dataclasses.asdict(RECORD)} | change
    return json.dumps({key: value for key, value in record.items() if value != "absent"})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        malformed({"v": 2}),
        malformed({"architecture": None}),
        malformed({"architecture": {"name": "x"}}),
        malformed({"architecture": dataclasses.asdict(preset("tiny")) | {"num_layers": 0}}),
        malformed({"tokenizer": {"name": "x"}}),
        malformed({"files": None}),
        malformed({"files": "absent"}),
        malformed({"iteration": "absent"}),
        malformed({"iteration": "x"}),
        malformed({"iteration": -1}),
        malformed({"consumed_samples": 1.5}),
        malformed({"padded_vocab_size": -1}),
        malformed({"padded_vocab_size": 1e300}),
        malformed({"padded_vocab_size": 100}),
        malformed({"architecture": dataclasses.asdict(preset("tiny")) | {"num_layers": 4.0}}),
        malformed({"unknown": 1}),
        malformed({"loss": []}),
        malformed({"loss": "2.5"}),
        malformed({"tokenizer": {"name": "x", "sha256": 1.5}}),
        malformed({"tokenizer": {"name": "x", "sha256": {}, "path": None}}),
    ],
)
def test_a_malformed_record_is_bad_data_and_damage(run: Path, content: str) -> None:
    directory = run / "iter_0000010"
    (directory / "run.json").write_text(content)
    with pytest.raises(BadData, match=r"run\.json: "):
        RunRecord.read(directory)
    damage = layout.damage(directory)
    assert damage is not None and "run.json" in damage


def test_the_tracker(tmp_path: Path) -> None:
    assert layout.read_tracker(tmp_path) is None
    layout.write_tracker(tmp_path, 1000)
    assert (tmp_path / layout.TRACKER).read_bytes() == b"1000"
    assert layout.read_tracker(tmp_path) == 1000
    layout.write_tracker(tmp_path, layout.RELEASE)
    assert layout.read_tracker(tmp_path) == "release"
    make_checkpoint(tmp_path / "release")
    assert layout.resolve_checkpoint_directory(tmp_path) == tmp_path / "release"


@pytest.mark.parametrize("content", ["", "ten", "-1", "1.5", "\u00b2", "10 20"])
def test_a_malformed_tracker(tmp_path: Path, content: str) -> None:
    (tmp_path / layout.TRACKER).write_text(content)
    with pytest.raises(BadData, match=layout.TRACKER):
        layout.read_tracker(tmp_path)


def test_a_tracker_with_a_newline_as_editors_leave_it(tmp_path: Path) -> None:
    (tmp_path / layout.TRACKER).write_text("1000\n")
    assert layout.read_tracker(tmp_path) == 1000


def test_a_killed_run_keeps_the_older_tracker(run: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from lt_shared.contracts import checkpoint_layout
os.replace = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
checkpoint_layout.write_tracker(Path(sys.argv[1]), 15)
"""
    assert subprocess.run([sys.executable, "-c", code, run]).returncode == -signal.SIGKILL
    assert layout.resolve_checkpoint_directory(run) == run / "iter_0000010"


@pytest.mark.parametrize(
    ("name", "iteration"),
    [("iter_0000010", 10), ("iter_12345678", 12345678), ("iter_10", None), ("release", None), (".iter_0000010.partial", None)],
)
def test_iteration_of(name: str, iteration: int | None) -> None:
    assert layout.iteration_of(Path("/run") / name) == iteration


def test_directories_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no such directory"):
        layout.resolve_checkpoint_directory(tmp_path / "none")
    with pytest.raises(NoInput, match="neither a checkpoint nor a run"):
        layout.resolve_checkpoint_directory(tmp_path)
    assert layout.checkpoints(tmp_path / "none") == []
    (tmp_path / "iter_x").mkdir()
    os.mkdir(tmp_path / ".iter_0000010.partial")
    assert layout.checkpoints(tmp_path) == []


def test_the_tokenizer_lies_beside_the_checkpoints(tmp_path: Path) -> None:
    assert layout.tokenizer_directory(tmp_path) == tmp_path / "tokenizer"


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "deleted"),
    [(None, None, []), (1, None, [10, 20, 30]), (2, 20, [10]), (9, None, []), (1, 10, []), (4, 20, [])],
)
def test_expired_checkpoints(keep_last: int | None, keep_every: int | None, deleted: list[int]) -> None:
    assert layout.expired([40, 10, 30, 20], keep_last, keep_every) == deleted


def test_record_lists_files_of_other_nodes(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(b"12345")
    RECORD.write(tmp_path, elsewhere={"__1_0.distcp": 7})
    assert RunRecord.read(tmp_path).files == {"__0_0.distcp": 5, "__1_0.distcp": 7}


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/b", "../a", "/a", "a/", "a\0", "\0", "__0_0.distcp\0"])
def test_shards_lie_in_the_checkpoint(name: str) -> None:
    """A NUL would end the name for the operating system, or raise an error of its own."""
    layout.check_shard_name("__0_0.distcp", "index")
    with pytest.raises(BadData, match="index: names a file outside the checkpoint") as caught:
        layout.check_shard_name(name, "index")
    assert caught.value.hint == "do not load it"


@pytest.mark.parametrize("name", [None, 7, b"__0_0.distcp", ["__0_0.distcp"]])
def test_the_name_of_a_shard_is_text(name: object) -> None:
    with pytest.raises(BadData, match="index: names a shard that is no text"):
        layout.check_shard_name(name, "index")
