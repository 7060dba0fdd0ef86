"""LoRA adapters extracted from a model and its base: the best of their rank, and merged again the model itself."""

import dataclasses
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
from lt_shared.models.architecture import Architecture, LatentAttention

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
    experts = [write(tmp_path / f"experts{seed}", DEEPSEEK, seed) for seed in (1, 2)]
    with pytest.raises(BadData, match="llama with experts: no adapter is extracted"):
        extract(Extraction(str(experts[1]), str(experts[0]), str(tmp_path / "x"), 1))


DEEPSEEK = dataclasses.replace(
    LLAMA,
    num_query_groups=4,
    kv_channels=0,
    norm_epsilon=1e-6,
    latent_attention=LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=12),
    num_experts=4,
    moe_ffn_hidden_size=24,
    moe_shared_expert_intermediate_size=48,
    moe_first_dense_layers=1,
    moe_router_pre_softmax=True,
)
GPT2 = Architecture("gpt2", "gpt", 2, 32, 64, 4, 4, 250, 64)
MIXTRAL = dataclasses.replace(LLAMA, num_experts=4, moe_router_topk=2, moe_router_pre_softmax=False)


@pytest.mark.parametrize("architecture", [GPT2, MIXTRAL], ids=["gpt2", "mixtral"])
def test_conv1d_biases_and_experts(architecture: Architecture, tmp_path: Path) -> None:
    """Merged into the base, a full rank is the tuned model; every pair has PEFT's orientation."""
    base, tuned = (write(tmp_path / str(seed), architecture, seed) for seed in (1, 2))
    extract(Extraction(str(tuned), str(base), str(tmp_path / "lora"), 64))
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    stored = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    before, after = values(base), values(tuned)
    assert config["fan_in_fan_out"] == (architecture is GPT2)
    for name, tensor in stored.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").partition(".lora_A.")[0]
        product = stored[name.replace(".lora_A.", ".lora_B.")] @ tensor
        difference = after[f"{module}.weight"] - before[f"{module}.weight"]
        is_conv1d = architecture is GPT2 and module != "lm_head"
        torch.testing.assert_close(product.T if is_conv1d else product, difference, rtol=1e-4, atol=1e-5)
        # PEFT joins experts whose ranks are equal.
        assert tensor.shape[0] == (64 if "moe" in module else min(difference.shape))
    if architecture is GPT2:
        assert config["bias"] == "lora_only"
        assert "base_model.model.transformer.h.1.attn.c_attn.base_layer.bias" in stored
        assert "base_model.model.transformer.ln_f.bias" in stored
    result = with_adapter(base, tmp_path / "lora", tmp_path / "made")
    for name, tensor in after.items():
        torch.testing.assert_close(result[name], tensor, rtol=1e-4, atol=1e-5)


def test_files_beside_the_model_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tuned = write(tmp_path / "base", LLAMA, 1), write(tmp_path / "tuned", LLAMA, 2)
    for model, template in ((base, "base"), (tuned, "tuned")):
        (model / "chat_template.jinja").write_text(template)
        (model / "LICENSE").write_text("licence")
    extract(Extraction(str(tuned), str(base), str(tmp_path / "lora"), 8))
    assert (
        f"warning: {tuned}: not taken along: chat_template.jinja (1 in all): the files are those of {base}\n"
        in capsys.readouterr().err
    )
