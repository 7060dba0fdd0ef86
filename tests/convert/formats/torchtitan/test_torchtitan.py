"""TorchTitan checkpoints against TorchTitan itself, which saves them here from two ranks with FSDP."""

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed import checkpoint

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import torchtitan
from lt_convert.formats.checkpoint import Source
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, CannotCreate, UsageError
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

# Nothing is a power of two: FSDP cuts inside heads and query groups.
ODD = Architecture("odd", "llama", 3, 30, 90, 6, 3, 251, 64, kv_channels=6)
TIED = Architecture("tied", "llama", 2, 32, 88, 4, 4, 250, 64, tie_embeddings=True)
TOKENS = [[(7 * position * position + 3) % 250 for position in range(48)]]
CLOSE = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


def opened(directory: Path) -> tuple[Source, dict[str, bytes]]:
    with Files() as files:
        source = torchtitan.open_source(str(directory), files)
        return source, {name: blocks.read(tensor, files).tobytes() for name, tensor in source.tensors.items()}


@pytest.fixture(scope="module")
def stock(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`odd`: two steps of training, everything saved; `tied`: weights alone, of a model with separate projections."""
    root = tmp_path_factory.mktemp("torchtitan")
    common = {"tokens": TOKENS, "steps": 2}
    odd = {"architecture": ODD.to_record(), "save": str(root / "odd" / "checkpoint"), "logits": str(root / "odd.npy")}
    tied = {"architecture": TIED.to_record(), "save": str(root / "tied"), "logits": str(root / "tied.npy")}
    ranks("torchtitan_model.py", [odd | common, tied | common | {"fused": False, "model_only": True}], world_size=2)
    (root / "odd" / "config.json").write_text(json.dumps(huggingface.to_config(ODD, "float32")))
    (root / "tied" / "config.json").write_text(json.dumps(huggingface.to_config(TIED, "float32")))
    return root


@pytest.mark.parametrize(("name", "source"), [("odd", "odd/checkpoint"), ("odd", "odd/checkpoint/step-2"), ("tied", "tied")])
def test_transformers_computes_what_torchtitan_did(stock: Path, name: str, source: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(convert(stock / source, "hf", tmp_path / "hf"))
    with torch.no_grad():
        logits = model(torch.tensor(TOKENS)).logits.numpy()
    expected = numpy.load(stock / f"{name}.npy")
    assert numpy.abs(expected).max() > 1
    assert numpy.abs(logits - expected).max() < CLOSE


def test_it_says_what_it_found(stock: Path) -> None:
    source, _ = opened(stock / "odd" / "checkpoint" / "step-2")
    assert (source.iteration, source.dtype, source.table, source.model.architecture.num_layers) == (2, "float32", "torchtitan", 3)
    assert source.optimizer is not None
    assert (source.optimizer.step, source.optimizer.tokens) == (2, 64)
    assert {"dataloader.dp_rank_1", "lr_scheduler.last_epoch"} <= set(source.left_out)
    # Some chunk begins inside a head.
    wo = source.tensors["model.layers.0.self_attn.o_proj.weight"]
    assert {chunk.indices[0].start for chunk in wo.chunks} == {0, 15}


def test_torch_loads_every_key_of_the_result(stock: Path, tmp_path: Path) -> None:
    """The tensors that TorchTitan itself saved, under its own names, come back through torch's reader; tied ones twice."""
    for name, place in (("odd", "odd/checkpoint/step-2"), ("tied", "tied/step-2")):
        result = convert(convert(stock / place, "hf", tmp_path / name), "torchtitan", tmp_path / f"{name}-back")
        ours, theirs = (loaded(directory) for directory in (result, stock / place))
        model = {key: tensor for key, tensor in theirs.items() if not key.startswith("optimizer.")}
        assert model.keys() == ours.keys()
        assert all(torch.equal(tensor, ours[key]) for key, tensor in model.items())


def loaded(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint as torch reads them."""
    entries = checkpoint.FileSystemReader(str(directory)).read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
        if isinstance(entry, checkpoint.metadata.TensorStorageMetadata)
    }
    checkpoint.load(state, checkpoint_id=str(directory), no_dist=True)
    return state


@pytest.mark.parametrize("prefix", ["", "model."])
def test_names_before_version_0_3(stock: Path, tmp_path: Path, prefix: str) -> None:
    """`attention.wq` and `output`, in the oldest ones below `model.`, and a buffer that everybody computes."""
    place = stock / "odd" / "checkpoint" / "step-2"
    renamed = {
        prefix + key.replace(".qkv_linear", "").replace("lm_head.", "output."): tensor
        for key, tensor in loaded(place).items()
        if not key.startswith("optimizer.")
    }
    state = renamed | {f"{prefix}freqs_cis": torch.ones(3, dtype=torch.complex64), "train_state.step": 2}
    checkpoint.save(state, checkpoint_id=str(tmp_path / "run" / "step-7"), no_dist=True)
    shutil.copy(stock / "odd" / "config.json", tmp_path / "run")
    source, tensors = opened(tmp_path / "run" / "step-7")
    assert (source.table, source.iteration, source.optimizer) == ("torchtitan, 2025", 2, None)
    assert tensors == opened(place)[1]


def test_without_a_configuration_it_is_refused(stock: Path, tmp_path: Path) -> None:
    """Shapes do not tell a RoPE."""
    shutil.copytree(stock / "odd" / "checkpoint" / "step-2", tmp_path / "run" / "checkpoint" / "step-2")
    with pytest.raises(BadData, match="does not store the model's configuration") as error:
        convert(tmp_path / "run" / "checkpoint", "hf", tmp_path / "out")
    assert f"into {tmp_path / 'run'}" in str(error.value.hint)
    (tmp_path / "run" / "checkpoint" / "step-2" / "config.json").write_text("{")
    with pytest.raises(BadData, match="not a model configuration"):
        convert(tmp_path / "run" / "checkpoint", "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_rope_makes_another_result(stock: Path, tmp_path: Path) -> None:
    """The configuration lies outside of the checkpoint, and belongs to it."""
    shutil.copytree(stock / "odd", tmp_path / "run")
    convert(tmp_path / "run" / "checkpoint", "hf", tmp_path / "out")
    other = dataclasses.replace(ODD, rotary_base=500000.0)
    (tmp_path / "run" / "config.json").write_text(json.dumps(huggingface.to_config(other, "float32")))
    with pytest.raises(CannotCreate):
        convert(tmp_path / "run" / "checkpoint", "hf", tmp_path / "out")
    convert(tmp_path / "run" / "checkpoint", "hf", tmp_path / "out", force=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_theta"] == 500000.0


def test_another_configuration_is_refused(stock: Path, tmp_path: Path) -> None:
    shutil.copytree(stock / "tied", tmp_path / "run")
    other = dataclasses.replace(TIED, num_query_groups=2)
    (tmp_path / "run" / "config.json").write_text(json.dumps(huggingface.to_config(other, "float32")))
    with pytest.raises(BadData, match=r"wk\.weight is .*, the configuration says"):
        convert(tmp_path / "run", "hf", tmp_path / "out")


def test_a_window_is_refused(write_model: Callable[..., Path], tmp_path: Path) -> None:
    windowed = write_model(tmp_path / "model", dataclasses.replace(TIED, tie_embeddings=False, sliding_window=16))
    with pytest.raises(UsageError, match="only gpt-oss has a sliding window"):
        convert(windowed, "torchtitan", tmp_path / "out")


def test_nothing_in_the_metadata_is_executed(stock: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return eval, (f"open({str(tmp_path / 'executed')!r}, 'w')",)

    shutil.copytree(stock / "tied", tmp_path / "run")
    path = tmp_path / "run" / "step-2" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = Payload()
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match=r"builtins.*\.eval"):
        convert(tmp_path / "run", "hf", tmp_path / "out")
    assert not (tmp_path / "executed").exists()
