"""Directories above a checkpoint, and files of other formats in them."""

from pathlib import Path

import pytest

from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import ToolError


def error(place: Path) -> ToolError:
    with Files() as files, pytest.raises(ToolError) as caught:
        location.locate(str(place), files)
    return caught.value


def put(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
    return place


def test_checkpoints_of_a_trainer_are_named_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (9, 10, 800):
        put(tmp_path, f"checkpoint-{step}/config.json", f"checkpoint-{step}/model.safetensors")
    put(tmp_path, "all_results.json")
    raised = error(tmp_path)
    assert str(raised) == f"{tmp_path}: no checkpoint itself, but below it are checkpoint-9, checkpoint-10, checkpoint-800"
    assert raised.hint == f"name one of them: {tmp_path}/checkpoint-800"
    for step in range(20, 30):
        put(tmp_path, f"checkpoint-{step}/config.json", f"checkpoint-{step}/model.safetensors")
    assert "checkpoint-26, checkpoint-27, checkpoint-28, checkpoint-29, checkpoint-800 and 8 more" in str(error(tmp_path))


def test_a_cache_of_the_hub_names_the_snapshot(tmp_path: Path) -> None:
    """The files of a snapshot are links to blobs."""
    put(tmp_path, "blobs/one", "blobs/two", "refs/main")
    snapshot = tmp_path / "snapshots" / "0a1b2c"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/one")
    (snapshot / "model.safetensors").symlink_to("../../blobs/two")
    assert error(tmp_path).hint == f"name one of them: {snapshot}"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("onnx/model.onnx", "an ONNX graph"), ("checkpoints/0/items/_METADATA", "a checkpoint of Orbax"),
     ("actor/model_world_size_2_rank_0.pt", "weights in shards of verl's FSDP")],
)  # fmt: skip
def test_files_of_other_formats_below_are_named(name: str, kind: str, tmp_path: Path) -> None:
    put(tmp_path, "config.json", name)
    assert str(error(tmp_path)).startswith(f"{tmp_path}/{name}: {kind}")


def test_a_configuration_alone_and_nothing(tmp_path: Path) -> None:
    assert "no checkpoint of a supported format" in str(error(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert str(error(put(tmp_path, "config.json"))) == f"{tmp_path}: config.json without weights"


def test_many_directories_are_not_all_read(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").mkdir()
    put(tmp_path / "299", "config.json", "model.safetensors")
    assert "no checkpoint of a supported format" in str(error(tmp_path))
    put(tmp_path / "100", "config.json", "model.safetensors")
    assert str(error(tmp_path)).endswith("below it are 100")
