"""LoRA adapters extracted from a model and its base: the best of their rank, and merged again the model itself."""

import json
from pathlib import Path

import pytest
import torch
from averaged_models import values, write
from safetensors.torch import load_file, save_file

import lt_convert
from lt_convert.commands import checksum_verification
from lt_convert.commands.merge.extraction import Extraction, extract
from lt_convert.commands.merge.merging import MergeRequest, merge
from lt_convert.commands.merge.sources import Chosen
from lt_convert.tensors import difference_factors
from lt_shared.console import BadData, UsageError
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("extracted", "llama", 3, 32, 88, 4, 2, 250, 64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write(root / "base", LLAMA, 1), write(root / "tuned", LLAMA, 2)


def with_adapter(base: Path, adapter: Path, destination: Path) -> dict[str, torch.Tensor]:
    merge(MergeRequest([Chosen(str(base), None)], "hf", str(destination), adapters=[str(adapter)]))
    return values(destination)


@pytest.mark.parametrize("block", [difference_factors.BLOCK, 300])
def test_factors_are_the_best_of_their_rank(
    block: int, models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference_factors, "BLOCK", block)
    base, tuned = models
    source = lt_convert.convert(tuned, tmp_path / "megatron", "megatron-dist").path
    assert extract(Extraction(str(source), str(base), str(tmp_path / "lora"), 8)).format == "peft"
    assert checksum_verification.verify(str(tmp_path / "lora"))["problems"] == []
    result = with_adapter(base, tmp_path / "lora", tmp_path / "made")
    before, after = values(base), values(tuned)
    for name, tensor in after.items():
        if "proj" not in name and name != "lm_head.weight":
            assert torch.equal(result[name], tensor), name
            continue
        left, scales, right = torch.linalg.svd((tensor - before[name]).double(), full_matrices=False)
        best = before[name] + (left[:, :8] * scales[:8]) @ right[:8]
        torch.testing.assert_close(result[name].double(), best, rtol=1e-5, atol=1e-6)


def test_a_full_rank_is_the_model(models: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = models
    extract(Extraction(str(tuned), str(base), str(tmp_path / "lora"), 32))
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == 32
    assert config["modules_to_save"] == ["embed_tokens", "input_layernorm", "norm", "post_attention_layernorm"]
    assert {"q_proj", "down_proj", "lm_head"} < set(config["target_modules"])
    # Keys and values have 16 rows.
    assert config["rank_pattern"]["model.layers.2.self_attn.k_proj"] == 16
    for name, tensor in with_adapter(base, tmp_path / "lora", tmp_path / "made").items():
        torch.testing.assert_close(tensor, values(tuned)[name], rtol=1e-5, atol=1e-6)


def test_equal_norms_and_embeddings_are_not_stored(models: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = models
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "config.json").write_bytes((base / "config.json").read_bytes())
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] += 1
    save_file(tensors, tmp_path / "tuned" / "model.safetensors")
    extract(Extraction(str(tmp_path / "tuned"), str(base), str(tmp_path / "lora"), 1))
    stored = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    assert all(".lora_" in name for name in stored)
    result = with_adapter(base, tmp_path / "lora", tmp_path / "made")
    for name, tensor in tensors.items():
        torch.testing.assert_close(result[name], tensor, rtol=1e-5, atol=1e-5)


def test_models_without_an_adapter(models: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = models
    with pytest.raises(UsageError, match="is the model and its base"):
        extract(Extraction(str(base), str(base), str(tmp_path / "x"), 1))
    other = write(tmp_path / "other", Architecture("other", "llama", 2, 32, 88, 4, 2, 250, 64), 1)
    with pytest.raises(BadData, match="num_layers is 2"):
        extract(Extraction(str(other), str(base), str(tmp_path / "x"), 1))
    experts = [
        write(tmp_path / f"experts{seed}", Architecture("moe", "llama", 1, 32, 40, 4, 2, 250, 64, num_experts=2), seed)
        for seed in (1, 2)
    ]
    with pytest.raises(BadData, match="llama with experts: no adapter is extracted"):
        extract(Extraction(str(experts[1]), str(experts[0]), str(tmp_path / "x"), 1))
