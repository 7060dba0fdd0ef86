"""torch_dist against megatron-core, which saves and loads on both sides, and damage of every kind: one error, nothing written."""

import dataclasses
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from common_state import edit_metadata, move_among_the_tensors, move_beside_the_tensors

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.megatron import torch_dist
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput
from lt_shared.models.architecture import Architecture

# Two implementations of the same fp32 network: the order of sums differs. Logits here are of size 1 to 10.
FP32_TOLERANCE = 2e-5
# Rounding of activations to 8 bits of mantissa, in another order.
BF16_TOLERANCE = 0.15


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


@dataclasses.dataclass(frozen=True)
class Stock:
    """What megatron-core made: checkpoints with the logits of their models, and logits of models loaded from conversions.

    `checkpoints` has one per architecture; `tensor` is `grouped` cut by heads, `pipeline` is `tied` cut into 2 and 1 layers,
    `bfloat16` is `grouped` in that dtype. Logits are float32 [1, position, padded vocabulary].
    """

    checkpoints: dict[str, tuple[Path, Architecture, numpy.ndarray]]
    loaded: dict[tuple[str, int, int], numpy.ndarray]


@pytest.fixture(scope="module")
def stock(
    megatron: Callable[..., None],
    models: dict[str, Path],
    architectures: dict[str, Architecture],
    tokens: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Stock:
    """Everything in one run of two ranks: importing megatron-core takes longer than all of it."""
    root = tmp_path_factory.mktemp("stock")

    def job(architecture: str, **more: Any) -> dict[str, Any]:
        return {"architecture": architectures[architecture].to_record(), "padded_vocab_size": 256, "tokens": tokens, **more}

    kinds = {name: (name, {}) for name in architectures} | {
        "bfloat16": ("grouped", {"dtype": "bfloat16"}),
        "tensor": ("grouped", {"tensor_parallel": 2}),
        "pipeline": ("tied", {"pipeline_parallel": 2}),
    }
    jobs = [job(kind, save=str(root / name), logits=str(root / f"{name}.npy"), **more) for name, (kind, more) in kinds.items()]
    loads = [(name, tensor, pipeline) for name in architectures for tensor, pipeline in ((1, 1), (2, 1), (1, 2))]
    for name in architectures:
        convert(models[name], "megatron-dist", root / "converted" / name)
    for name, tensor, pipeline in loads:
        jobs.append(
            job(
                name,
                load=str(root / "converted" / name / "release"),
                logits=str(root / f"loaded-{name}-{tensor}-{pipeline}.npy"),
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
            )
        )
    megatron(jobs, world_size=2)
    return Stock(
        {name: (root / name, architectures[kind], numpy.load(root / f"{name}.npy")) for name, (kind, _) in kinds.items()},
        {load: numpy.load(root / f"loaded-{'-'.join(map(str, load))}.npy") for load in loads},
    )


def transformers_logits(directory: Path, tokens: list[list[int]]) -> numpy.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.float().numpy()


@pytest.mark.parametrize("name", ["grouped", "tied", "scaled", "tensor", "pipeline", "bfloat16"])
def test_megatron_checkpoint_gives_the_same_logits_in_transformers(
    name: str, stock: Stock, tokens: list[list[int]], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    directory, architecture, logits = stock.checkpoints[name]
    result = convert(directory, "hf", tmp_path / "hf")
    expected = logits[..., : architecture.vocab_size]
    found = transformers_logits(result, tokens)
    assert found.shape == expected.shape
    assert abs(found - expected).max() < (BF16_TOLERANCE if name == "bfloat16" else FP32_TOLERANCE)
    assert expected.std() > 0.3
    config = AutoConfig.from_pretrained(result)
    assert config.dtype == (torch.bfloat16 if name == "bfloat16" else torch.float32)
    assert config.tie_word_embeddings == architecture.tie_embeddings


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (1, 2)], ids=["alone", "tensor", "pipeline"])
@pytest.mark.parametrize("name", ["grouped", "tied", "scaled"])
def test_hf_checkpoint_gives_the_same_logits_in_megatron(
    name: str, layout: tuple[int, int], stock: Stock, models: dict[str, Path], tokens: list[list[int]]
) -> None:
    expected = transformers_logits(models[name], tokens)
    found = stock.loaded[name, *layout]
    vocabulary = expected.shape[-1]
    assert abs(found[..., :vocabulary] - expected).max() < FP32_TOLERANCE
    assert expected.std() > 0.3
    if name != "tied":
        assert not found[..., vocabulary:].any(), "padding rows are zeros"


@pytest.mark.parametrize("name", ["tensor", "bfloat16"])
def test_round_trip_keeps_the_padding_rows(name: str, stock: Stock, tmp_path: Path) -> None:
    directory, _, _ = stock.checkpoints[name]
    convert(directory, "hf", tmp_path / "hf")
    # vLLM loads whatever has one of these endings where there is no index.
    loaded = [path.name for path in (tmp_path / "hf").iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth")]
    assert loaded == ["model.safetensors"]
    run = convert(tmp_path / "hf", "megatron-dist", tmp_path / "run")
    assert _model_tensors(directory) == _model_tensors(run)


def _model_tensors(directory: Path) -> dict[str, bytes]:
    """Every model tensor of a torch_dist checkpoint as torch's own reader gives it."""
    from torch.distributed.checkpoint import FileSystemReader, load

    metadata = FileSystemReader(directory).read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.items()
        if hasattr(entry, "size") and not key.startswith("optimizer.")
    }
    load(state, storage_reader=FileSystemReader(directory), no_dist=True)
    return {key: tensor.view(torch.uint8).numpy().tobytes() for key, tensor in state.items()}


@pytest.fixture
def checkpoint(stock: Stock, tmp_path: Path) -> Path:
    """A copy to damage, as stock Megatron leaves it: without run.json, and with common.pt whatever its version."""
    copy = Path(shutil.copytree(stock.checkpoints["tensor"][0], tmp_path / "place" / "checkpoint"))
    move_beside_the_tensors(copy)
    return copy


def edit_common(directory: Path, **arguments: Any) -> None:
    common = torch.load(directory / "common.pt", weights_only=False)
    for name, value in arguments.items():
        setattr(common["args"], name, value)
    torch.save(common, directory / "common.pt")


def first_place(metadata: Any) -> Any:
    return next(place for key, place in metadata.storage_data.items() if key.fqn == "output_layer.weight")


def test_arguments_among_the_tensors(checkpoint: Path, tmp_path: Path) -> None:
    convert(checkpoint, "hf", tmp_path / "before")
    move_among_the_tensors(checkpoint)
    convert(checkpoint, "hf", tmp_path / "after")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def refuse(directory: Path, error: type[Exception] = BadData) -> str:
    """Convert, expect a refusal that leaves nothing behind, and return its message."""
    result = directory.parent / "result"
    with pytest.raises(error) as caught:
        convert(directory, "hf", result)
    assert sorted(path.name for path in directory.parent.iterdir()) == [directory.name]
    return str(caught.value)


def test_layers_come_one_by_one(checkpoint: Path) -> None:
    with Files() as files:
        source = torch_dist.open_source(str(checkpoint), files)
    assert source.tensors["model.layers.2.mlp.down_proj.weight"].shape == (32, 88)
    # Two ranks wrote the gate's rows and the up projection's rows apart.
    assert len(source.tensors["model.layers.2.mlp.gate_proj.weight"].chunks) == 2
    assert len(source.tensors) == 3 + 3 * 9 + 2
    assert "optimizer.state.exp_avg.decoder.final_layernorm.weight" in source.left_out
    assert "rng_state/shard_0_1" in source.left_out
    assert source.details["parallel"] == {}


def test_prefix_of_other_trainers_is_taken_off(checkpoint: Path, tmp_path: Path) -> None:
    def add_prefix(metadata: Any) -> None:
        for table in (metadata.state_dict_metadata, metadata.storage_data):
            for key in list(table):
                name = key if isinstance(key, str) else key.fqn
                if not name.startswith(("optimizer.", "rng_state")):
                    entry = table.pop(key)
                    prefixed = f"model.{name}"
                    table[prefixed if isinstance(key, str) else type(key)(prefixed, key.offset)] = entry

    convert(checkpoint, "hf", tmp_path / "before")
    edit_metadata(checkpoint, add_prefix)
    convert(checkpoint, "hf", tmp_path / "after")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


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
    assert f"output_layer.weight at byte {place[0].offset}: not an archive of torch.save" in refuse(checkpoint)


def test_chunk_of_another_shape(checkpoint: Path) -> None:
    def swap(metadata: Any) -> None:
        place = first_place(metadata)
        other = next(place for key, place in metadata.storage_data.items() if key.fqn == "decoder.final_layernorm.weight")
        place.relative_path, place.offset, place.length = other.relative_path, other.offset, other.length

    edit_metadata(checkpoint, swap)
    assert "is float32 [32], expected float32 [128, 32]" in refuse(checkpoint)


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
    assert "this model has no decoder.layers.{0-2}.mlp.router.weight" in refuse(checkpoint)


def test_unknown_bytes(checkpoint: Path) -> None:
    def add(metadata: Any) -> None:
        index = next(key for key in metadata.storage_data if key.fqn == "rng_state/shard_0_1")
        metadata.state_dict_metadata["tables/shard_0_1"] = metadata.state_dict_metadata[index.fqn]
        metadata.storage_data[type(index)("tables/shard_0_1")] = metadata.storage_data[index]

    edit_metadata(checkpoint, add)
    assert "this model has no tables/shard_0_1" in refuse(checkpoint)


def test_missing_arguments(checkpoint: Path) -> None:
    (checkpoint / "common.pt").unlink()
    assert "common.pt: missing" in refuse(checkpoint)
    torch.save({"iteration": 1}, checkpoint / "common.pt")
    assert "holds no Megatron arguments" in refuse(checkpoint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 2}, "decoder.layers.2.self_attention"),
        ({"num_layers": "three"}, "malformed"),
        ({"ffn_hidden_size": 44}, "the configuration says"),
        ({"vocab_size": 300}, "the embedding has 256 rows for a vocabulary of 300"),
        ({"position_embedding_type": "learned_absolute"}, "normalization is 'RMSNorm'"),
        ({"position_embedding_type": "mrope"}, "position embedding type 'mrope'"),
        ({"rotary_percent": 0.5}, "of features: the nearest is llama, which has rotary_percent 1.0, not 0.5"),
        ({"rotary_interleaved": True}, "rotary_interleaved is True"),
    ],
)
def test_arguments_of_another_model(checkpoint: Path, arguments: dict[str, Any], message: str) -> None:
    edit_common(checkpoint, **arguments)
    assert message in refuse(checkpoint)


def test_vocabulary_size_that_is_not_stored(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_common(checkpoint, vocab_size=None)
    convert(checkpoint, "hf", checkpoint.parent / "result")
    assert "all 256 rows are kept" in capsys.readouterr().err


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no checkpoint of a supported format" in refuse(tmp_path / "empty", NoInput)
