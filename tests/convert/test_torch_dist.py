"""Damage of every kind in a torch_dist checkpoint is one error, before anything is written."""

import io
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lt_convert import conversion, torch_dist
from lt_convert.conversion import Request
from lt_convert.tensors import OpenFiles
from lt_shared.console import BadData, NoInput


@pytest.fixture
def checkpoint(megatron_checkpoints: dict[str, Any], tmp_path: Path) -> Path:
    """A copy to damage, as stock Megatron leaves it: without run.json."""
    return Path(shutil.copytree(megatron_checkpoints["tensor"].directory, tmp_path / "checkpoint"))


def edit_metadata(directory: Path, change: Callable[[Any], None]) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    change(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def edit_common(directory: Path, **arguments: Any) -> None:
    common = torch.load(directory / "common.pt", weights_only=False)
    for name, value in arguments.items():
        setattr(common["args"], name, value)
    torch.save(common, directory / "common.pt")


def move_common_among_the_tensors(directory: Path) -> None:
    """Store the content of common.pt as megatron-core 0.19 does: an object in a list, beside the tensors."""
    common = torch.load(directory / "common.pt", weights_only=False)
    (directory / "common.pt").unlink()
    content = io.BytesIO()
    torch.save([common], content)

    def add(metadata: Any) -> None:
        key, place = next((key, place) for key, place in metadata.storage_data.items() if key.fqn.startswith("rng_state/"))
        shard = directory / place.relative_path
        start = shard.stat().st_size
        shard.write_bytes(shard.read_bytes() + content.getvalue())
        name = "common_state/shard_0_1"
        metadata.state_dict_metadata[name] = metadata.state_dict_metadata[key.fqn]
        metadata.storage_data[type(key)(name)] = type(place)(place.relative_path, start, content.tell())

    edit_metadata(directory, add)


def first_place(metadata: Any) -> Any:
    return next(place for key, place in metadata.storage_data.items() if key.fqn == "output_layer.weight")


def test_arguments_among_the_tensors(checkpoint: Path, tmp_path: Path) -> None:
    conversion.convert(Request(str(checkpoint), "hf", tmp_path / "before"))
    move_common_among_the_tensors(checkpoint)
    conversion.convert(Request(str(checkpoint), "hf", tmp_path / "after"))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def refuse(directory: Path, error: type[Exception] = BadData) -> str:
    """Convert, expect a refusal that leaves nothing behind, and return its message."""
    result = directory.parent / "result"
    with pytest.raises(error) as caught:
        conversion.convert(Request(str(directory), "hf", result))
    assert sorted(path.name for path in directory.parent.iterdir()) == [directory.name]
    return str(caught.value)


def test_layers_come_one_by_one(checkpoint: Path) -> None:
    with OpenFiles() as files:
        contents = torch_dist.read(checkpoint, files)
    assert contents.tensors["decoder.layers.2.mlp.linear_fc2.weight"].shape == (32, 88)
    assert len(contents.tensors["decoder.layers.2.mlp.linear_fc1.weight"].chunks) == 4
    assert len(contents.tensors) == 3 + 3 * 6
    assert "optimizer.state.exp_avg.decoder.final_layernorm.weight" in contents.left_out
    assert "rng_state/shard_0_1" in contents.left_out


def test_prefix_of_other_trainers_is_taken_off(checkpoint: Path) -> None:
    def add_prefix(metadata: Any) -> None:
        for table in (metadata.state_dict_metadata, metadata.storage_data):
            for key in list(table):
                name = key if isinstance(key, str) else key.fqn
                if not name.startswith(("optimizer.", "rng_state")):
                    entry = table.pop(key)
                    prefixed = f"model.{name}"
                    table[prefixed if isinstance(key, str) else type(key)(prefixed, key.offset)] = entry

    edit_metadata(checkpoint, add_prefix)
    conversion.convert(Request(str(checkpoint), "hf", checkpoint.parent / "result"))


def test_missing_shard(checkpoint: Path) -> None:
    (checkpoint / "__1_0.distcp").unlink()
    assert refuse(checkpoint).endswith("__1_0.distcp: missing")


def test_truncated_shard(checkpoint: Path) -> None:
    path = checkpoint / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-5000])
    assert "__1_0.distcp" in refuse(checkpoint)


def test_missing_metadata(checkpoint: Path) -> None:
    (checkpoint / ".metadata").unlink()
    assert refuse(checkpoint).endswith(".metadata: missing")


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps({"a": 1}), pickle.dumps(torch.Size([1]))])
def test_metadata_that_is_something_else(checkpoint: Path, content: bytes) -> None:
    (checkpoint / ".metadata").write_bytes(content)
    assert ".metadata: not" in refuse(checkpoint)


class Malicious:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_malicious_metadata_runs_nothing(checkpoint: Path) -> None:
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Malicious(checkpoint / "ran")))
    assert "mkdir, which no checkpoint needs" in refuse(checkpoint)
    assert not (checkpoint / "ran").exists()


def test_malicious_arguments_run_nothing(checkpoint: Path) -> None:
    torch.save({"args": Malicious(checkpoint / "ran")}, checkpoint / "common.pt")
    assert "common.pt: not a readable pickle" in refuse(checkpoint)
    assert not (checkpoint / "ran").exists()


def test_malicious_chunk_runs_nothing(checkpoint: Path) -> None:
    def point_at_another(metadata: Any) -> None:
        place = first_place(metadata)
        path = checkpoint / "__9_9.distcp"
        torch.save(Malicious(checkpoint / "ran"), path)
        place.relative_path, place.offset, place.length = path.name, 0, path.stat().st_size

    edit_metadata(checkpoint, point_at_another)
    assert "not a readable pickle" in refuse(checkpoint)
    assert not (checkpoint / "ran").exists()


def test_overwritten_chunk(checkpoint: Path) -> None:
    place: list[Any] = []
    edit_metadata(checkpoint, lambda metadata: place.append(first_place(metadata)))
    path = checkpoint / place[0].relative_path
    content = bytearray(path.read_bytes())
    content[place[0].offset : place[0].offset + place[0].length] = bytes(place[0].length)
    path.write_bytes(content)
    assert f"the chunk of output_layer.weight at byte {place[0].offset} is damaged" in refuse(checkpoint)


def test_chunk_of_another_shape(checkpoint: Path) -> None:
    def swap(metadata: Any) -> None:
        place = first_place(metadata)
        other = next(place for key, place in metadata.storage_data.items() if key.fqn == "decoder.final_layernorm.weight")
        place.relative_path, place.offset, place.length = other.relative_path, other.offset, other.length

    edit_metadata(checkpoint, swap)
    assert "is not a plain float32 tensor of shape [128, 32]" in refuse(checkpoint)


def test_file_outside_the_checkpoint(checkpoint: Path) -> None:
    edit_metadata(checkpoint, lambda metadata: setattr(first_place(metadata), "relative_path", "../other/__0_0.distcp"))
    assert "outside the checkpoint" in refuse(checkpoint)


def test_missing_chunk(checkpoint: Path) -> None:
    edit_metadata(checkpoint, lambda metadata: metadata.state_dict_metadata["output_layer.weight"].chunks.pop())
    assert "output_layer.weight: its chunks do not cover" in refuse(checkpoint)


def test_unknown_tensor(checkpoint: Path) -> None:
    def add(metadata: Any) -> None:
        tensors, places = metadata.state_dict_metadata, metadata.storage_data
        tensors["decoder.layers.mlp.router.weight"] = tensors["decoder.layers.mlp.linear_fc2.weight"]
        index = next(key for key in places if key.fqn == "decoder.layers.mlp.linear_fc2.weight")
        for key in [key for key in places if key.fqn == index.fqn]:
            places[type(key)("decoder.layers.mlp.router.weight", key.offset)] = places[key]

    edit_metadata(checkpoint, add)
    assert "decoder.layers.0.mlp.router.weight (and 2 more) has no place" in refuse(checkpoint)


def test_unknown_bytes(checkpoint: Path) -> None:
    def add(metadata: Any) -> None:
        metadata.state_dict_metadata["tables/shard_0_1"] = metadata.state_dict_metadata["rng_state/shard_0_1"]

    edit_metadata(checkpoint, add)
    assert "tables/shard_0_1 is not a tensor" in refuse(checkpoint)


def test_missing_arguments(checkpoint: Path) -> None:
    (checkpoint / "common.pt").unlink()
    assert "common.pt: missing" in refuse(checkpoint)
    torch.save({"iteration": 1}, checkpoint / "common.pt")
    assert "has no Megatron arguments" in refuse(checkpoint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 2}, "decoder.layers.2.self_attention"),
        ({"num_layers": "three"}, "malformed"),
        ({"ffn_hidden_size": 44}, "the configuration says"),
        ({"vocab_size": 300}, "the embedding has 256 rows for a vocabulary of 300"),
        ({"position_embedding_type": "learned_absolute"}, "normalization is 'RMSNorm'"),
        ({"position_embedding_type": "yarn"}, "position embedding type 'yarn'"),
        ({"rotary_percent": 0.5}, "rotary_percent is 0.5"),
        ({"rotary_interleaved": True}, "rotary_interleaved is True"),
    ],
)
def test_arguments_of_another_model(checkpoint: Path, arguments: dict[str, Any], message: str) -> None:
    edit_common(checkpoint, **arguments)
    assert message in refuse(checkpoint)


def test_vocabulary_size_that_is_not_stored(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_common(checkpoint, vocab_size=None)
    conversion.convert(Request(str(checkpoint), "hf", checkpoint.parent / "result"))
    assert "all 256 rows are kept" in capsys.readouterr().err


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no checkpoint that is known here" in refuse(tmp_path / "empty", NoInput)
