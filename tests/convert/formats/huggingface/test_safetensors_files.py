"""Layouts of safetensors that transformers and torch write: slices of ranks, fused experts, variants, shards without an index."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nursery
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {**SIZES, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
GROUPS = {"num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
MIXTURES = {
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "qwen3_moe": Qwen3MoeConfig(**EXPERTS, num_experts=4, head_dim=8, norm_topk_prob=True),
    "deepseek_v3": DeepseekV3Config(**{**EXPERTS, **LATENT, **GROUPS}),
    "glm4_moe": Glm4MoeConfig(**EXPERTS, n_routed_experts=4, head_dim=8),
}
# Run by each of two ranks: every third tensor whole, the others cut along one axis or the other.
WRITER = """
import sys, torch.distributed as dist, torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
rank, source, destination, meeting = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {
    name: distribute_tensor(tensor, mesh, [Shard(index % tensor.dim()) if index % 3 else Replicate()])
    for index, (name, tensor) in enumerate(load_file(source).items())
}
dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=destination, save_distributed=True, enable_consolidation=False))
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "llama"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(place)
    return place


def back(source: Path, tmp_path: Path) -> dict[str, torch.Tensor]:
    """The tensors after a conversion to Megatron's format and back."""
    conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "megatron")))
    conversion.convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    return load_file(tmp_path / "back" / "model.safetensors")


def check_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_as_transformers_has_them_in_memory(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MIXTURES[name]).eval()
    model.save_pretrained(tmp_path / "published")
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    assert any(key.endswith("experts.gate_up_proj") for key in load_file(tmp_path / "fused" / "model.safetensors"))
    check_same(back(tmp_path / "fused", tmp_path), load_file(tmp_path / "published" / "model.safetensors"))
    tokens = torch.arange(20)[None] % 64
    with torch.no_grad():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.fixture(scope="module")
def slices(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks of `save_pretrained(distributed_checkpoint=True)` write."""
    place = tmp_path_factory.mktemp("slices") / "model"
    place.mkdir()
    shutil.copy(llama / "config.json", place)
    words = [str(llama / "model.safetensors"), str(place), str(place.parent / "meeting")]
    ranks = [subprocess.Popen([nursery.python(), "-c", WRITER, str(rank), *words]) for rank in range(2)]
    assert [rank.wait(600) for rank in ranks] == [0, 0]
    return place


def test_slices_of_ranks(slices: Path, llama: Path, tmp_path: Path) -> None:
    assert len(list(slices.glob("shard-0000?-model-*.safetensors"))) == 2
    check_same(back(slices, tmp_path), load_file(llama / "model.safetensors"))
    conversion.convert(Request(str(slices), "hf", str(tmp_path / "joined")))
    check_same(load_file(tmp_path / "joined" / "model.safetensors"), load_file(llama / "model.safetensors"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_slice_is_named(slices: Path, rank: int, tmp_path: Path) -> None:
    place = Path(shutil.copytree(slices, tmp_path / "model"))
    sorted(place.glob("shard-*"))[rank].unlink()
    with pytest.raises(BadData, match=r"one is missing|missing model\.layers"):
        conversion.convert(Request(str(place), "megatron-dist", str(tmp_path / "megatron")))


def test_variants(llama: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama)
    model.save_pretrained(tmp_path / "one", variant="fp16")
    model.save_pretrained(tmp_path / "sharded", variant="fp16", max_shard_size="20KB")
    assert (tmp_path / "one" / "model.fp16.safetensors").is_file()
    assert (tmp_path / "sharded" / "model.safetensors.index.fp16.json").is_file()
    for name in ("one", "sharded"):
        check_same(back(tmp_path / name, tmp_path / f"of-{name}"), load_file(llama / "model.safetensors"))
    shutil.copy(tmp_path / "one" / "model.fp16.safetensors", tmp_path / "one" / "model.bf16.safetensors")
    with pytest.raises(BadData, match="several variants of the model: bf16, fp16"):
        back(tmp_path / "one", tmp_path / "of-two")


def test_shards_of_a_variant_without_an_index(llama: Path, tmp_path: Path) -> None:
    """transformers puts the name of the variant before the number; diffusers and older files have it behind the number."""
    place = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(llama).save_pretrained(place, variant="fp16", max_shard_size="20KB")
    (place / "model.safetensors.index.fp16.json").unlink()
    check_same(back(place, tmp_path), load_file(llama / "model.safetensors"))
    for path in place.glob("model.fp16-*.safetensors"):
        path.rename(place / f"model{path.name.removeprefix('model.fp16').removesuffix('.safetensors')}.fp16.safetensors")
    check_same(back(place, tmp_path / "older"), load_file(llama / "model.safetensors"))
    min(place.glob("*.safetensors")).unlink()
    with pytest.raises(BadData, match=r"number 1 of \d+ is missing"):
        back(place, tmp_path / "damaged")


def test_shards_without_an_index(llama: Path, tmp_path: Path) -> None:
    place = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(llama).save_pretrained(place, max_shard_size="20KB")
    (place / "model.safetensors.index.json").unlink()
    check_same(back(place, tmp_path), load_file(llama / "model.safetensors"))
    min(place.glob("*.safetensors")).unlink()
    with pytest.raises(BadData, match=r"shards without a model\.safetensors\.index\.json, and number 1 of \d+ is missing"):
        back(place, tmp_path / "damaged")


def test_weights_without_a_configuration(llama: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(llama).save_pretrained(place, max_shard_size="20KB")
    (place / "config.json").unlink()
    with pytest.raises(BadData, match=r"config\.json: missing: it has weights in Hugging Face's format"):
        back(place, tmp_path)


def test_dtype_is_that_of_most_bytes(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(shutil.copytree(llama, tmp_path / "mixed"))
    tensors = load_file(llama / "model.safetensors")
    mixed = {name: tensor if "embed" in name else tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(mixed, place / "model.safetensors", metadata={"format": "pt"})
    check_same(back(place, tmp_path), mixed)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert "stored as bfloat16 and as float32 (8,192 bytes)" in capsys.readouterr().err
