"""gpt-oss in OpenAI's own layout: the model of OpenAI's formula, written out here, and that of transformers say the same."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from lt_convert.commands import checkpoint_comparison, conversion
from lt_convert.commands.conversion import Request
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

# As published with the 20B model, but for the sizes.
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "experts_per_token": 2,
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "swiglu_limit": 7.0,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 6,
    "initial_context_length": 512,
    "rope_theta": 20000,
    "rope_scaling_factor": 4.0,
    "rope_ntk_alpha": 1,
    "rope_ntk_beta": 32,
}
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
Tensors = dict[str, torch.Tensor]


def stored(seed: int = 1) -> Tensors:
    """Random tensors under OpenAI's names, the experts' matrices in MXFP4."""
    generator = torch.Generator().manual_seed(seed)
    hidden, ffn, experts, head = 64, 96, 8, 32

    def normal(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.3 + mean).to(torch.bfloat16)

    found = {
        "embedding.weight": normal(96, hidden),
        "norm.scale": normal(hidden, mean=1),
        "unembedding.weight": normal(96, hidden),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        rows = {"attn.qkv": (8 * head, hidden), "attn.out": (hidden, 4 * head), "mlp.gate": (experts, hidden)}
        for name, shape in rows.items():
            found |= {f"block.{layer}.{name}.weight": normal(*shape), f"block.{layer}.{name}.bias": normal(shape[0])}
        found |= {f"block.{layer}.{name}.norm.scale": normal(hidden, mean=1) for name in ("attn", "mlp")}
        found[f"block.{layer}.attn.sinks"] = normal(4)
        for name, out, width in (("mlp1", 2 * ffn, hidden), ("mlp2", hidden, ffn)):
            prefix = f"block.{layer}.mlp.{name}"
            blocks = torch.randint(0, 256, (experts, out, width // 32, 16), generator=generator)
            found[f"{prefix}_weight.blocks"] = blocks.to(torch.uint8)
            found[f"{prefix}_weight.scales"] = torch.randint(122, 126, blocks.shape[:-1], generator=generator).to(torch.uint8)
            found[f"{prefix}_bias"] = normal(experts, out)
    return found


def logits(tensors: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """OpenAI's model in float32."""
    count, head, groups = len(tokens), CONFIG["head_dim"], CONFIG["num_key_value_heads"]

    def get(name: str) -> torch.Tensor:
        if f"{name}.blocks" not in tensors:
            return tensors[name].float()
        blocks, scales = tensors[f"{name}.blocks"].long(), tensors[f"{name}.scales"].float()
        values = torch.stack((FP4[blocks & 15], FP4[blocks >> 4]), -1).flatten(-2)
        return (values * torch.exp2(scales - 127).unsqueeze(-1)).flatten(-2)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * get(name)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ get(f"{name}.weight").T + get(f"{name}.bias")

    def corner(rotations: float) -> float:
        return head / 2 * math.log(CONFIG["initial_context_length"] / (rotations * 2 * math.pi)) / math.log(CONFIG["rope_theta"])

    frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, head, 2) / head)
    low, high = corner(CONFIG["rope_ntk_beta"]), corner(CONFIG["rope_ntk_alpha"])
    kept = 1 - ((torch.arange(head // 2) - low) / (high - low)).clamp(0, 1)
    frequencies = frequencies * kept + frequencies / CONFIG["rope_scaling_factor"] * (1 - kept)
    angles = torch.outer(torch.arange(count).float(), frequencies)[:, None]
    concentration = 0.1 * math.log(CONFIG["rope_scaling_factor"]) + 1

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos() * concentration, angles.sin() * concentration
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    x = get("embedding.weight")[tokens]
    ahead = torch.arange(count)[:, None] - torch.arange(count)
    for layer in range(CONFIG["num_hidden_layers"]):
        block = f"block.{layer}."
        qkv = linear(norm(x, f"{block}attn.norm.scale"), f"{block}attn.qkv").view(count, 4 + 2 * groups, head)
        q, k, v = rotated(qkv[:, :4]), rotated(qkv[:, 4 : 4 + groups]), qkv[:, 4 + groups :]
        k, v = (each.repeat_interleave(4 // groups, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(head)
        hidden = (ahead < 0) | (ahead >= CONFIG["sliding_window"] if layer % 2 == 0 else ahead < 0)
        scores = scores.masked_fill(hidden, -math.inf)
        sinks = get(f"{block}attn.sinks").view(-1, 1, 1).expand(-1, count, 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        x = x + linear(torch.einsum("hqk,khd->qhd", weights, v).flatten(1), f"{block}attn.out")
        t = norm(x, f"{block}mlp.norm.scale")
        chosen = linear(t, f"{block}mlp.gate").topk(CONFIG["experts_per_token"], -1)
        up = torch.einsum("teoi,ti->teo", get(f"{block}mlp.mlp1_weight")[chosen.indices], t)
        up = up + get(f"{block}mlp.mlp1_bias")[chosen.indices]
        gate, linear_part = up[..., ::2].clamp(max=7), up[..., 1::2].clamp(-7, 7)
        up = gate * torch.sigmoid(1.702 * gate) * (linear_part + 1)
        down = torch.einsum("teoi,tei->teo", get(f"{block}mlp.mlp2_weight")[chosen.indices], up)
        down = down + get(f"{block}mlp.mlp2_bias")[chosen.indices]
        x = x + (down * chosen.values.softmax(-1).unsqueeze(-1)).sum(1)
    return norm(x, "norm.scale") @ get("unembedding.weight").T


def write(directory: Path, tensors: Tensors, config: dict[str, Any] | None = None, shards: int = 1) -> Path:
    directory.mkdir(parents=True)
    names = sorted(tensors)
    for shard in range(shards):
        part = {name: tensors[name] for name in names[shard::shards]}
        name = "model.safetensors" if shards == 1 else f"model--{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, directory / name)
    (directory / "config.json").write_text(json.dumps(config or CONFIG))
    (directory / "dtypes.json").write_text("{}")
    return directory


def convert(source: Path, to: str, destination: Path) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination))).path)


@pytest.mark.parametrize("shards", [1, 3])
def test_transformers_computes_the_same(shards: int, tmp_path: Path) -> None:
    tensors = stored()
    source = write(tmp_path / "gpt-oss" / "original", tensors, shards=shards)
    convert(source, "megatron-dist", tmp_path / "dist")
    convert(tmp_path / "dist", "hf", tmp_path / "hf")
    tokens = torch.arange(40) * 7 % 96
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        found = model(tokens[None]).logits[0]
    expected = logits(tensors, tokens)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert checkpoint_comparison.compare(str(source), str(tmp_path / "hf"))["same"]


def test_experts_that_are_not_quantized(tmp_path: Path) -> None:
    quantized = write(tmp_path / "quantized" / "original", stored())
    tensors = stored()
    for name in [name for name in tensors if name.endswith(".blocks")]:
        blocks, scales = tensors.pop(name).long(), tensors.pop(name.replace("blocks", "scales")).float()
        values = torch.stack((FP4[blocks & 15], FP4[blocks >> 4]), -1).flatten(-2) * torch.exp2(scales - 127).unsqueeze(-1)
        tensors[name.removesuffix(".blocks")] = values.flatten(-2).to(torch.bfloat16)
    plain = write(tmp_path / "plain" / "original", tensors)
    assert checkpoint_comparison.compare(str(quantized), str(plain))["same"]


def test_the_published_sizes(tmp_path: Path) -> None:
    """OpenAI's class has the sizes of the 120B model as defaults; both files say them."""
    from lt_convert.formats.huggingface import openai_original

    for name, layers, experts in (("gpt-oss-120b", 36, 128), ("gpt-oss-20b", 24, 32)):
        config = {"num_hidden_layers": layers, "num_experts": experts, "experts_per_token": 4, "rope_ntk_alpha": 1.0}
        found = huggingface.from_config(openai_original.config_for_transformers(config), name)
        assert found == preset(name)


@pytest.mark.parametrize(
    ("config", "tensor", "message"),
    [
        ({"mlp_bias": True}, None, r"^[^:]*/config\.json: mlp_bias is no setting"),
        ({"num_key_value_heads": 4}, None, "attn.qkv.* has 256 rows, the configuration says 384"),
        ({}, "block.0.attn.qk_norm.scale", "is no tensor of OpenAI's gpt-oss"),
        ({"swiglu_limit": 5.0}, None, "swiglu_limit"),
    ],
)
def test_what_is_not_openais_model(config: dict[str, Any], tensor: str | None, message: str, tmp_path: Path) -> None:
    tensors = stored() | ({tensor: torch.ones(3)} if tensor else {})
    source = write(tmp_path / "original", tensors, CONFIG | config)
    with pytest.raises(BadData, match=message), Files() as files:
        conversion.plan(Request(str(source), "megatron-dist", str(tmp_path / "out")), files)


def test_the_tokenizer_is_in_the_directory_above(tmp_path: Path) -> None:
    source = write(tmp_path / "gpt-oss" / "original", stored())
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(str(tmp_path / "gpt-oss" / "tokenizer.json"))
    with Files() as files:
        plan = conversion.plan(Request(str(source), "megatron-dist", str(tmp_path / "out")), files)
    assert plan.to_record()["tokenizer"] == str(tmp_path / "gpt-oss")
