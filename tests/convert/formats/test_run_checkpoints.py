"""Which checkpoints of a run are complete: each trainer's way of writing, stopped at every point."""

import shutil
from pathlib import Path

import pytest

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import run_checkpoints
from lt_shared import checkpoint_layout
from lt_shared.checkpoint_layout import RECORD, TRACKER
from lt_shared.checksums import FileChecksums
from lt_shared.console import BadData, NoInput


@pytest.fixture(scope="module")
def checkpoint(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    return Path(conversion.convert(Request(str(models["grouped"]), "megatron-dist", str(place / "run"))).path)


def complete(run: Path) -> list[str]:
    return [one.name for one in run_checkpoints.complete(str(run))]


def test_lt_train_renames_what_is_complete(checkpoint: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for iteration in (1_000_000_0, 20, 3):
        shutil.copytree(checkpoint, checkpoint_layout.iteration_directory(run, iteration))
    shutil.copytree(checkpoint, run / ".iter_0000030.partial-abcd")
    shutil.copytree(checkpoint, run / "release")
    assert complete(run) == ["iter_0000003", "iter_0000020", "iter_10000000"], "run.json is in all, whatever the tracker says"
    checkpoint_layout.write_tracker(run, 20)
    assert len(complete(run)) == 3


def test_a_copy_is_complete_with_its_last_byte(checkpoint: Path, tmp_path: Path) -> None:
    """rsync and cp write files in any order, and run.json has their sizes."""
    run = tmp_path / "run"
    shutil.copytree(checkpoint, run / "iter_0000010")
    checkpoint_layout.write_tracker(run, 10)
    files = sorted(set((run / "iter_0000010").iterdir()) - {run / "iter_0000010" / name for name in (RECORD, FileChecksums.NAME)})
    assert len(files) > 3
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        assert complete(run) == []
        path.unlink()
        assert complete(run) == []
        path.write_bytes(content)
        assert complete(run) == ["iter_0000010"]


def test_megatron_lm_writes_the_tracker_last(checkpoint: Path, tmp_path: Path) -> None:
    """It writes into the final directory. .metadata may be there before other ranks end; the tracker is empty for a moment."""
    run = tmp_path / "run"
    for iteration in (10, 20):
        shutil.copytree(checkpoint, checkpoint_layout.iteration_directory(run, iteration), ignore=shutil.ignore_patterns(RECORD))
        assert complete(run) == ["iter_0000010"][: iteration // 10 - 1]
        (run / TRACKER).write_text("")
        assert complete(run) == []
        (run / TRACKER).write_text(str(iteration))
        assert complete(run) == ["iter_0000010", "iter_0000020"][: iteration // 10]
    # One that a crash left without .metadata, before the run went on to 20.
    (run / "iter_0000010" / ".metadata").unlink()
    assert complete(run) == ["iter_0000020"]


def test_legacy_checkpoints(models: dict[str, Path], tmp_path: Path) -> None:
    made = conversion.convert(Request(str(models["grouped"]), "megatron-legacy", str(tmp_path / "made"))).path
    shutil.copytree(made, tmp_path / "run" / "iter_0000010")
    assert complete(tmp_path / "run") == []
    checkpoint_layout.write_tracker(tmp_path / "run", 10)
    assert complete(tmp_path / "run") == ["iter_0000010"]


def test_torchtitan_writes_metadata_last(models: dict[str, Path], tmp_path: Path) -> None:
    made = Path(conversion.convert(Request(str(models["grouped"]), "torchtitan", str(tmp_path / "made"))).path)
    for step in (100, 9):
        shutil.copytree(made, tmp_path / "run" / f"step-{step}", ignore=shutil.ignore_patterns(RECORD))
    assert complete(tmp_path / "run") == ["step-9", "step-100"]
    (tmp_path / "run" / "step-9" / ".metadata").rename(tmp_path / "run" / "step-9" / ".metadata.tmp")
    assert complete(tmp_path / "run") == ["step-100"]


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoInput):
        complete(tmp_path / "gone")
    assert complete(tmp_path) == []
    (tmp_path / TRACKER).write_text("many")
    with pytest.raises(BadData, match="holds 'many'"):
        complete(tmp_path)
