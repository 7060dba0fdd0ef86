"""Megatron-FSDP's checkpoints: the same model and moments as Megatron's torch_dist checkpoint of the same state."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lt_convert.commands import conversion, inspection
from lt_convert.commands.conversion import Request
from lt_convert.formats import location
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("run", "llama", 3, 32, 96, 4, 2, 250, 64, rotary_base=500000.0)
GPT = Architecture("run", "gpt", 3, 32, 96, 4, 4, 250, 64)
MIXTRAL = Architecture("run", "llama", 2, 32, 40, 4, 2, 250, 64, num_experts=4)
FSDP, PER_WEIGHT = "fsdp_dtensor", "fully_reshardable"
RUNS: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "fused-norms": (LLAMA, {"fused_norms": True}),
    "gpt": (GPT, {}),
    "experts": (MIXTRAL, {}),
    "bridge": (LLAMA, {"trainer": "bridge"}),
}


@pytest.fixture(scope="module")
def stock(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME/FORM/iter_0000003 of each run and form."""
    root = tmp_path_factory.mktemp("fsdp")

    def job(name: str, architecture: Architecture, **more: Any) -> dict[str, Any]:
        save = {form: str(root / name / form / "iter_0000003") for form in (FSDP, PER_WEIGHT)}
        return {"architecture": architecture.to_record(), "padded_vocab_size": 256, "steps": 3, "save": save, **more}

    ranks("megatron_optimizer.py", [job(name, architecture, **more) for name, (architecture, more) in RUNS.items()])
    return root


def state(path: Path) -> dict[str, Any]:
    with Files() as files:
        found = location.open_source(str(path), files)
        assert found.optimizer is not None
        moments = {
            kind: {name: blocks.read(each, files).tobytes() for name, each in found.optimizer.tensors[kind].items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }
        rates = {name: found.optimizer.hyperparameters[name] for name in ("lr", "betas", "eps")}
        return {"step": found.optimizer.step, "iteration": found.iteration, "tokens": found.optimizer.tokens, **rates, **moments}


@pytest.mark.parametrize("name", RUNS)
def test_is_the_state_of_torch_dist(stock: Path, name: str) -> None:
    assert state(stock / name / FSDP / "iter_0000003") == state(stock / name / PER_WEIGHT / "iter_0000003")


@pytest.mark.parametrize("name", RUNS)
def test_weights_are_the_fp32_ones_of_the_optimizer(stock: Path, name: str, tmp_path: Path) -> None:
    for form in (FSDP, PER_WEIGHT):
        source = str(stock / name / form / "iter_0000003")
        conversion.convert(Request(source, "hf", str(tmp_path / form), dtype="bfloat16" if form == FSDP else None))
    found, expected = (load_file(tmp_path / form / "model.safetensors") for form in (FSDP, PER_WEIGHT))
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())


def test_to_a_run_that_goes_on(stock: Path, tmp_path: Path) -> None:
    source = stock / "llama" / FSDP / "iter_0000003"
    made = conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "run")))
    assert state(Path(made.path)) == state(source)
    assert inspection.inspect(str(source))["format"] == "megatron-fsdp"


def test_half_a_layer_is_refused(stock: Path, tmp_path: Path) -> None:
    source = tmp_path / "iter_0000003"
    shutil.copytree(stock / "llama" / FSDP / "iter_0000003", source)
    metadata = pickle.loads((source / ".metadata").read_bytes())
    key = next(key for key in metadata.state_dict_metadata if key.startswith("model.") and key.endswith("linear_fc1.weight_v"))
    del metadata.state_dict_metadata[key]
    metadata.storage_data = {index: info for index, info in metadata.storage_data.items() if index.fqn != key}
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match=r"linear_fc1\.weight_w and no "):
        conversion.convert(Request(str(source), "hf", str(tmp_path / "hf")))
    assert not (tmp_path / "hf").exists()
