"""A run that is killed at any moment, also inside of a save, goes on as if nothing had happened, bit for bit on a CPU."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import RUNS, faulty, losses, train

from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Checkpoint, Dataset
from lt_shared.files import storage
from lt_train.checkpoint import disk_space, remote_run, saver
from lt_train.train import crash_loop


def iterations(directory: Path) -> list[int]:
    """The checkpoints that are visible; each must be complete."""
    found = checkpoint_layout.checkpoints(directory)
    assert all(checkpoint_layout.damage(path) is None for path in found)
    return sorted(checkpoint_layout.iteration_of(path) or 0 for path in found)


def error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "error:" in line]


def test_killed_inside_of_asynchronous_saves(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    """A disk fails; then all processes are killed while shards are written, and when the tracker does not yet name them."""
    directory = tmp_path / "run"
    arguments = (*RUNS["one"], "--async-save", "--keep-last", "2", "--save", str(directory), dataset.prefix)
    full = train(*arguments, **faulty("0:fsync:.distcp:EIO:rank"))
    assert full.code == 74, full.err
    (error,) = error_lines(full.err)
    assert "iteration 4 not saved" in error
    assert "MB are free" in error
    for moment, visible in (("fsync:.distcp", []), ("replace:latest_checkpointed", [4])):
        killed = train(*arguments, **faulty(f"0:{moment}:SIGKILL:launcher"))
        assert killed.code == -9, killed.err
        assert iterations(directory) == visible
    assert checkpoint_layout.read_tracker(directory) is None
    (directory / crash_loop.FILE).unlink()
    done = train(*arguments)
    assert done.code == 0, done.err
    assert "at iteration 4" in done.err
    assert losses(directory) == losses(finished / "one")
    assert iterations(directory) == [8, 12]
    assert not list(directory.glob(".iter_*"))
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    costs = [record for record in metrics if record["kind"] == "checkpoint"]
    assert costs
    assert all(0 < record["waited_seconds"] <= record["seconds"] for record in costs)


def test_one_of_two_ranks_is_told_to_end_and_one_is_killed(tmp_path: Path, dataset: Dataset, finished: Path) -> None:
    directory = tmp_path / "run"
    arguments = (*RUNS["two"], "--save", str(directory), dataset.prefix)
    ended = train(*arguments, **faulty("1:fsync:iter_0000004:SIGUSR1:rank"))
    assert ended.code == 75, ended.err
    assert not error_lines(ended.err)
    assert "ended by SIGUSR1 at iteration 5" in ended.err
    assert iterations(directory) == [4, 5]
    assert '"kind":"end"' not in ended.out
    killed = train(*arguments, **faulty("1:fsync:iter_0000008:SIGKILL:rank"))
    assert killed.code == 137, killed.err
    (error,) = error_lines(killed.err)
    assert "rank 1 on" in error
    assert iterations(directory) == [4, 5]
    done = train(*arguments)
    assert done.code == 0, done.err
    assert losses(directory) == losses(finished / "two")


def test_a_remote_run(tmp_path: Path, dataset: Dataset, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec treats local:// as it treats s3://: nothing but whole objects."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    store = tmp_path / "store"
    arguments = (*RUNS["one"], "--keep-last", "1", "--save", f"local://{store}", dataset.prefix)
    first = train(*arguments, "--exit-interval", "8", "--async-save")
    assert first.code == 75, first.err
    assert complete(store) == ["iter_0000008"]
    (store / "iter_0000009").mkdir()
    (store / "iter_0000009/__0_0.distcp").write_bytes(b"cut off")
    # Another node has nothing of the first attempt.
    shutil.rmtree(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    second = train(*arguments)
    assert second.code == 0, second.err
    assert "passing over an incomplete checkpoint" in second.err
    (checkpoint,) = second.manifest
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.path == f"local://{store}/iter_0000012"
    assert complete(store) == ["iter_0000012"]
    assert losses(store) == losses(finished / "one")
    assert (store / "tokenizer/vocab.json").is_file()
    assert checkpoint_layout.read_tracker(store) == 12
    assert not list((tmp_path / "tmp").rglob("*.distcp"))
    again = train(*arguments)
    assert (again.code, again.out) == (0, second.out)
    assert "up to date" in again.err


def complete(store: Path) -> list[str]:
    """A store has no empty directories, which local:// leaves where all files were deleted."""
    return [path.parent.name for path in store.glob("*/run.json") if checkpoint_layout.damage(path.parent) is None]


def test_what_is_kept(tmp_path: Path, finished: Path) -> None:
    copy = Path(shutil.copytree(finished / "one", tmp_path / "run"))
    (copy / "iter_0000004/.metadata").unlink()
    disk_space.delete_expired(copy, 12, keep_last=1, keep_every=8)
    assert [path.name for path in checkpoint_layout.checkpoints(copy)] == ["iter_0000012", "iter_0000008", "iter_0000004"]
    disk_space.delete_expired(copy, 12, keep_last=1, keep_every=None)
    assert [path.name for path in checkpoint_layout.checkpoints(copy)] == ["iter_0000012", "iter_0000004"]


def test_the_only_complete_checkpoint_is_never_deleted(tmp_path: Path, finished: Path) -> None:
    copy = Path(shutil.copytree(finished / "one", tmp_path / "run"))
    for path in checkpoint_layout.checkpoints(copy)[:2]:
        (path / ".metadata").unlink()
    disk_space.delete_expired(copy, 12, keep_last=1, keep_every=None)
    assert len(checkpoint_layout.checkpoints(copy)) == 3


def test_remote_checkpoints(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = "memory://checkpoints/run"
    assert remote_run.newest(url) is None
    for iteration in (4, 8):
        checkpoint = checkpoint_layout.iteration_directory(finished / "one", iteration)
        for path in checkpoint.iterdir():
            storage.upload(path, f"{url}/{checkpoint.name}/{path.name}")
    assert remote_run.newest(url) == remote_run.find_checkpoint(f"{url}/") == f"{url}/iter_0000008"
    copy = remote_run.fetch(f"{url}/iter_0000008", None)
    assert remote_run.fetch(f"{url}/iter_0000008", None) == copy
    remote_run.forget(copy)
    assert not copy.exists()
    storage.write_bytes(f"{url}/iter_0000008/.metadata", b"cut off")
    assert remote_run.newest(url) == f"{url}/iter_0000004"
    remote_run.delete_expired(url, 8, keep_last=1, keep_every=None)
    assert remote_run.newest(url) == f"{url}/iter_0000004"
    storage.remove(f"{url}/iter_0000004/run.json")
    with pytest.raises(BadData, match="none of its checkpoints is complete"):
        remote_run.newest(url)


def test_an_interrupted_upload_is_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """`run.json` comes last and then the tracker: where there is neither, the same command begins from the beginning."""
    url = "memory://interrupted/run"
    storage.write_bytes(f"{url}/iter_0000002/__0_0.distcp", b"cut off")
    assert remote_run.newest(url) is None
    assert "passing over an incomplete checkpoint" in capsys.readouterr().err
    storage.write_bytes(f"{url}/latest_checkpointed_iteration.txt", b"2")
    with pytest.raises(BadData, match="none of its checkpoints is complete"):
        remote_run.newest(url)


@pytest.mark.parametrize("is_written", [False, True])
def test_ranks_wait_no_longer_for_the_question_whether_all_have_written_than_for_a_step(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs while a checkpoint is being written would hold the others up for the time that saving may take."""
    happened: list[str] = []

    @contextlib.contextmanager
    def slow() -> Iterator[None]:
        happened.append("slow")
        yield
        happened.append("as before")

    def ask(own: int, where: Any) -> bool:
        happened.append("asked")
        return not is_written

    monkeypatch.setattr(saver.agreement, "reduce_maximum", ask)
    writer = SimpleNamespace(start=lambda: None, is_running=lambda: False)
    writing = SimpleNamespace(waiting=contextlib.nullcontext, writer=writer)
    saving = SimpleNamespace(_saves=writing, device=None, state=SimpleNamespace(iteration=4), _retry_at=None)
    saving.finish = lambda: happened.append("finished")
    saver.Saver.poll(saving, slow=slow)  # type: ignore[arg-type]
    assert happened == ["asked", *(["slow", "finished", "as before"] if is_written else [])]
