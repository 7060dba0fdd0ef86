"""Which checkpoints of a run are complete: each trainer's way of writing, stopped at every point."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import run_checkpoints
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import COMMON, RECORD, TRACKER
from lt_shared.files.checksums import FileChecksums


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


def test_what_was_completed_since_the_list_was_read_is_not_damaged(checkpoint: Path, tmp_path: Path) -> None:
    """A run goes on between both looks at it."""
    run = tmp_path / "run"
    for iteration in (10, 20):
        shutil.copytree(checkpoint, checkpoint_layout.iteration_directory(run, iteration), ignore=shutil.ignore_patterns(RECORD))
    (run / TRACKER).write_text("10")
    whole = run_checkpoints.complete(str(run))
    (run / TRACKER).write_text("20")
    assert run_checkpoints.damaged(str(run), whole) == []
    (run / "iter_0000020" / ".metadata").unlink()
    assert [one.name for one in run_checkpoints.damaged(str(run), whole)] == ["iter_0000020"]


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


def bridge_checkpoint(checkpoint: Path, run: Path, iteration: int) -> Path:
    """A checkpoint as Megatron-Bridge has it when all ranks have written; what rank 0 adds is not there."""
    return Path(
        shutil.copytree(
            checkpoint, checkpoint_layout.iteration_directory(run, iteration), ignore=shutil.ignore_patterns(RECORD, COMMON)
        )
    )


@pytest.mark.parametrize("with_megatron_lms_tracker", [True, False])
def test_megatron_bridge_writes_its_configuration_last(checkpoint: Path, tmp_path: Path, with_megatron_lms_tracker: bool) -> None:
    run, done = tmp_path / "run", []
    for iteration in (10, 20):
        made = bridge_checkpoint(checkpoint, run, iteration)
        assert complete(run) == done
        torch.save({"step": torch.tensor(iteration)}, made / "train_state.pt")
        assert complete(run) == done
        content = (made / "train_state.pt").read_bytes()
        for end in (0, 100, len(content)):
            (run / "latest_train_state.pt").write_bytes(content[:end])
            assert complete(run) in ([], done)
        if with_megatron_lms_tracker:
            for text in ("", str(iteration)):
                (run / TRACKER).write_text(text)
                assert complete(run) in ([], done)
        (made / "run_config.yaml").write_text("model: {}\n")
        done = [*done, made.name]
        assert complete(run) == done


def test_the_tracker_of_megatron_bridge_runs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    made = bridge_checkpoint(checkpoint, tmp_path / "run", 10)
    for name in ("train_state.pt", "run_config.yaml"):
        (made / name).touch()
    torch.save({"step": Attack()}, tmp_path / "run" / "latest_train_state.pt")
    assert complete(tmp_path / "run") == []
    assert not (tmp_path / "ran").exists()


def nemo_checkpoint(checkpoint: Path, directory: Path) -> Path:
    (directory / "context").mkdir(parents=True)
    shutil.copytree(checkpoint, directory / "weights", ignore=shutil.ignore_patterns(RECORD, COMMON))
    return directory


def test_nemo_marks_what_it_writes_and_deletes(checkpoint: Path, tmp_path: Path) -> None:
    run = tmp_path / "run" / "checkpoints"
    name = "model--val_loss=0.53-step={}-consumed_samples=640.0"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for step in (99, 9):
        marker = run / f"{name.format(step)}-unfinished"
        marker.touch()
        made = nemo_checkpoint(checkpoint, run / name.format(step))
        assert f"step-{step}" not in complete(run)
        marker.unlink()
        assert f"step-{step}" in complete(run)
    assert complete(run) == complete(tmp_path / "run") == ["step-9", "step-99"]
    # A link or a copy of the newest, an average, and one without its context yet.
    (run / f"{name.format(99)}-last").symlink_to(run / name.format(99))
    nemo_checkpoint(checkpoint, run / f"{name.format(120)}-EMA")
    shutil.rmtree(nemo_checkpoint(checkpoint, run / name.format(130)) / "context")
    assert [Path(one.directory).name for one in run_checkpoints.complete(str(run))] == [name.format(9), name.format(99)]
    assert made == run / name.format(9)


def test_a_name_of_nemo_without_a_step(checkpoint: Path, tmp_path: Path) -> None:
    for number, directory in enumerate(("b--consumed_samples=8.0", "a--consumed_samples=16.0"), start=1):
        made = nemo_checkpoint(checkpoint, tmp_path / directory)
        torch.save({"global_step": 10 * number}, made / "weights" / COMMON)
    assert complete(tmp_path) == ["step-10", "step-20"]
    torch.save({}, made / "weights" / COMMON)
    with pytest.raises(BadData, match="has no global_step"):
        complete(tmp_path)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoInput):
        complete(tmp_path / "gone")
    assert complete(tmp_path) == []
    (tmp_path / TRACKER).write_text("many")
    with pytest.raises(BadData, match="holds 'many'"):
        complete(tmp_path)
