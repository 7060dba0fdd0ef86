"""The newest step of a run is the same one for RUN, `merge --last` and `follow`, in whatever format it is, and broken or not."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow import following
from lt_convert.commands.follow.following import FollowRequest
from lt_convert.commands.merge import merging, sources
from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import ToolError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RECORD

INDEX = "model.safetensors.index.json"


def follow(run: Path, tmp_path: Path) -> tuple[bool, list[str]]:
    went_well = following.follow(FollowRequest(str(run), "hf", str(tmp_path / "followed")), None, lambda _: None)
    return went_well, sorted(path.name for path in (tmp_path / "followed").iterdir() if path.is_dir())


def newest(run: Path) -> str:
    with Files() as files:
        return location.locate(str(run), files)[0].rsplit("/", 1)[-1]


@pytest.fixture
def titan(models: dict[str, Path], tmp_path: Path) -> Path:
    """A run of TorchTitan whose last step is in Hugging Face's format: safetensors and an index, no config.json."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(models["grouped"] / "config.json", run)
    conversion.convert(Request(str(models["grouped"]), "torchtitan", str(run / "step-10")))
    last = run / "step-20"
    last.mkdir()
    tensors = {name: tensor + 1 for name, tensor in load_file(models["grouped"] / "model.safetensors").items()}
    save_file(tensors, last / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (last / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return run


def test_the_last_step_in_hugging_faces_format(titan: Path, models: dict[str, Path], tmp_path: Path) -> None:
    assert newest(titan) == "step-20"
    made = conversion.convert(Request(str(titan), "hf", str(tmp_path / "hf")))
    assert made.iteration == 20
    # A step that was saved with its own config.json, too.
    shutil.copytree(titan / "step-20", tmp_path / "complete" / "step-20")
    shutil.copy(titan / "config.json", tmp_path / "complete" / "step-20")
    complete = str(tmp_path / "complete" / "step-20")
    assert conversion.convert(Request(complete, "torchtitan", str(tmp_path / "titan"))).iteration == 20
    expected = load_file(titan / "step-20" / "model-00001-of-00001.safetensors")
    found = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert [Path(one.path).name for one in sources.last_of_run(str(titan), 2)] == ["step-10", "step-20"]
    assert follow(titan, tmp_path) == (True, ["step-10", "step-20"])
    found = load_file(tmp_path / "followed" / "step-20" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    merging.merge(merging.MergeRequest(sources.last_of_run(str(titan), 2), "hf", str(tmp_path / "merged")))
    averaged = load_file(tmp_path / "merged" / "model.safetensors")
    older = load_file(models["grouped"] / "model.safetensors")
    assert all(torch.allclose(averaged[name], (expected[name] + older[name]) / 2) for name in expected)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


TITAN_DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut-off": lambda step: cut_off(step / "model-00001-of-00001.safetensors"),
    "missing": lambda step: (step / "model-00001-of-00001.safetensors").unlink(),
    "empty-index": lambda step: (step / INDEX).write_text(""),
}


@pytest.mark.parametrize("damage", TITAN_DAMAGE)
def test_a_broken_last_step_is_an_error(damage: str, titan: Path, tmp_path: Path) -> None:
    TITAN_DAMAGE[damage](titan / "step-20")
    with pytest.raises(ToolError, match="step-20"):
        conversion.convert(Request(str(titan), "megatron-dist", str(tmp_path / "out")))
    assert follow(titan, tmp_path) == (False, ["step-10"])
    with pytest.raises(ToolError, match="step-20"):
        merging.merge(merging.MergeRequest(sources.last_of_run(str(titan), 2), "hf", str(tmp_path / "merged")))


def test_a_newest_step_that_may_still_be_written_is_told(titan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TorchTitan itself passes such a step over, too."""
    (titan / "step-20" / INDEX).unlink()
    assert newest(titan) == "step-10"
    assert "step-20: not complete" in capsys.readouterr().err
    assert follow(titan, tmp_path) == (True, ["step-10"])
    assert f"{titan}/step-20: is not complete yet" in capsys.readouterr().err
    os.utime(titan / "step-20", (0, 0))
    assert follow(titan, tmp_path)[0] is False


@pytest.fixture
def megatron(models: dict[str, Path], tmp_path: Path) -> Path:
    """Two checkpoints as lt-train writes them, of which the tracker names the newer one."""
    conversion.convert(Request(str(models["grouped"]), "megatron-dist", str(tmp_path / "made")))
    run = tmp_path / "run"
    for iteration in (2, 4):
        shutil.copytree(tmp_path / "made" / "release", checkpoint_layout.iteration_directory(run, iteration))
    checkpoint_layout.write_tracker(run, 4)
    return run


def of_megatron_lm(checkpoint: Path) -> None:
    """Megatron-LM has no record of the files' sizes."""
    (checkpoint / RECORD).unlink()
    (checkpoint / "checksums.json").unlink(missing_ok=True)


def shard(checkpoint: Path) -> Path:
    return max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut-off": lambda checkpoint: cut_off(shard(checkpoint)),
    "missing-shard": lambda checkpoint: shard(checkpoint).unlink(),
    "missing-metadata": lambda checkpoint: (checkpoint / ".metadata").unlink(),
    "missing-configuration": lambda checkpoint: (checkpoint / "metadata.json").unlink(),
    "cut-off-metadata": lambda checkpoint: cut_off(checkpoint / ".metadata"),
    "missing-directory": shutil.rmtree,
}


@pytest.mark.parametrize("writer", ["lt-train", "Megatron-LM"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_newest_checkpoint_is_an_error(
    damage: str, writer: str, megatron: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if writer == "Megatron-LM":
        for checkpoint in megatron.glob("iter_*"):
            of_megatron_lm(checkpoint)
    DAMAGE[damage](megatron / "iter_0000004")
    with pytest.raises(ToolError, match="iter_0000004"):
        conversion.convert(Request(str(megatron), "hf", str(tmp_path / "out")))
    assert follow(megatron, tmp_path) == (False, ["iter_0000002"])
    assert "iter_0000004" in capsys.readouterr().err
    with pytest.raises(ToolError, match="iter_0000004"):
        merging.merge(merging.MergeRequest(sources.last_of_run(str(megatron), 2), "hf", str(tmp_path / "merged")))


def test_a_step_in_the_format_of_the_results_is_followed(titan: Path, tmp_path: Path) -> None:
    shutil.copy(titan / "config.json", titan / "step-20")
    assert follow(titan, tmp_path) == (True, ["step-10", "step-20"])
    expected = load_file(titan / "step-20" / "model-00001-of-00001.safetensors")
    copy = load_file(tmp_path / "followed" / "step-20" / "model.safetensors")
    assert copy.keys() == expected.keys()
    assert all(torch.equal(copy[name], tensor) for name, tensor in expected.items())
