"""Meta's and Mistral's own files: the models of their formulas, written out here, and those of transformers say the same."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData, ToolError

State = dict[str, torch.Tensor]
VOCABULARY, FFN = 64, 96
# As in the published files, but for the sizes.
META: dict[str, dict[str, Any]] = {
    "llama-2": {"dim": 64, "multiple_of": 32, "n_heads": 8, "n_layers": 2, "norm_eps": 1e-05, "vocab_size": -1},
    "llama-2-70b": {"dim": 64, "multiple_of": 32, "ffn_dim_multiplier": 1.3, "n_heads": 16, "n_kv_heads": 8, "n_layers": 2,
                    "norm_eps": 1e-05, "vocab_size": -1},
    "llama-3.1": {"dim": 64, "ffn_dim_multiplier": 1.3, "multiple_of": 32, "n_heads": 8, "n_kv_heads": 8, "n_layers": 2,
                  "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": True, "vocab_size": VOCABULARY},
}  # fmt: skip
MISTRAL: dict[str, dict[str, Any]] = {
    "mistral-v0.1": {"dim": 64, "n_layers": 2, "head_dim": 8, "hidden_dim": FFN, "n_heads": 8, "n_kv_heads": 2,
                     "norm_eps": 1e-05, "sliding_window": 6, "vocab_size": VOCABULARY},
    "nemo": {"dim": 64, "n_layers": 2, "head_dim": 16, "hidden_dim": FFN, "n_heads": 8, "n_kv_heads": 2, "norm_eps": 1e-05,
             "vocab_size": VOCABULARY, "rope_theta": 1000000.0, "max_seq_len": 128},
    "mixtral": {"dim": 64, "n_layers": 2, "head_dim": 8, "hidden_dim": FFN, "n_heads": 8, "n_kv_heads": 2, "norm_eps": 1e-05,
                "vocab_size": VOCABULARY, "rope_theta": 1000000.0, "moe": {"num_experts_per_tok": 2, "num_experts": 4}},
}  # fmt: skip


def state_of(params: dict[str, Any]) -> State:
    """Random tensors under the published names."""
    generator = torch.Generator().manual_seed(3)
    dim, heads = params["dim"], params["n_heads"]
    head = params.get("head_dim", dim // heads)
    keys = params.get("n_kv_heads", heads) * head

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)).to(torch.bfloat16)

    state = {"tok_embeddings.weight": normal(VOCABULARY, dim), "norm.weight": normal(dim)}
    for layer in range(params["n_layers"]):
        prefix = f"layers.{layer}."
        for name, rows in (("wq", heads * head), ("wk", keys), ("wv", keys)):
            state[f"{prefix}attention.{name}.weight"] = normal(rows, dim)
        state[f"{prefix}attention.wo.weight"] = normal(dim, heads * head)
        state |= {f"{prefix}{name}_norm.weight": normal(dim) for name in ("attention", "ffn")}
        experts = [f"experts.{number}." for number in range(params["moe"]["num_experts"])] if "moe" in params else [""]
        for expert in experts:
            for name, shape in (("w1", (FFN, dim)), ("w2", (dim, FFN)), ("w3", (FFN, dim))):
                state[f"{prefix}feed_forward.{expert}{name}.weight"] = normal(*shape)
        if "moe" in params:
            state[f"{prefix}feed_forward.gate.weight"] = normal(len(experts), dim)
    return state | {"output.weight": normal(VOCABULARY, dim)}


def frequencies(params: dict[str, Any], factor: float) -> torch.Tensor:
    """Angles per position, with Llama 3.1's scaling."""
    head = params.get("head_dim", params["dim"] // params["n_heads"])
    freqs = 1.0 / (params.get("rope_theta", 10000.0) ** (torch.arange(0, head, 2).double() / head))
    if not params.get("use_scaled_rope"):
        return freqs
    scaled = []
    for freq in freqs.tolist():
        wavelength = 2 * math.pi / freq
        smooth = (8192 / wavelength - 1) / 3
        between = (1 - smooth) * freq / factor + smooth * freq
        scaled.append(freq if wavelength < 8192 / 4 else freq / factor if wavelength > 8192 else between)
    return torch.tensor(scaled, dtype=torch.float64)


def logits(state: State, params: dict[str, Any], tokens: torch.Tensor, factor: float = 8.0) -> torch.Tensor:
    """Meta's and Mistral's model in float64: rotary positions turn pairs of adjacent channels as complex numbers."""
    state = {name: tensor.double() for name, tensor in state.items()}
    count, heads, groups = len(tokens), params["n_heads"], params.get("n_kv_heads", params["n_heads"])
    angles = torch.outer(torch.arange(count).double(), frequencies(params, factor))
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    distance = torch.arange(count)[:, None] - torch.arange(count)
    mask = (distance < 0) | (distance >= params.get("sliding_window", count + 1))

    def norm(hidden: torch.Tensor, name: str) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + params["norm_eps"]) * state[f"{name}.weight"]

    def rotated(channels: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(channels.reshape(*channels.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(2)

    def feed_forward(hidden: torch.Tensor, prefix: str) -> torch.Tensor:
        gate = torch.nn.functional.silu(hidden @ state[f"{prefix}w1.weight"].T)
        return (gate * (hidden @ state[f"{prefix}w3.weight"].T)) @ state[f"{prefix}w2.weight"].T

    hidden = state["tok_embeddings.weight"][tokens]
    for layer in range(params["n_layers"]):
        prefix = f"layers.{layer}.attention."
        normed = norm(hidden, f"layers.{layer}.attention_norm")
        query, key, value = (
            (normed @ state[f"{prefix}w{letter}.weight"].T).view(count, number, -1)
            for letter, number in (("q", heads), ("k", groups), ("v", groups))
        )
        query, key = rotated(query), rotated(key).repeat_interleave(heads // groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(mask, -math.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(heads // groups, 1)).flatten(1)
        hidden = hidden + attended @ state[f"{prefix}wo.weight"].T
        normed, prefix = norm(hidden, f"layers.{layer}.ffn_norm"), f"layers.{layer}.feed_forward."
        if "moe" not in params:
            hidden = hidden + feed_forward(normed, prefix)
            continue
        best, chosen = torch.topk(normed @ state[f"{prefix}gate.weight"].T, params["moe"]["num_experts_per_tok"])
        for number in range(params["moe"]["num_experts"]):
            share = (best.softmax(-1) * (chosen == number)).sum(-1, keepdim=True)
            hidden = hidden + share * feed_forward(normed, f"{prefix}experts.{number}.")
    return norm(hidden, "norm") @ state["output.weight"].T


def slices(state: State, count: int, by_rows: bool) -> list[State]:
    """The files of ranks: rows of most matrices, columns of others, of the embedding by the version of Llama."""
    parts: list[State] = [{} for _ in range(count)]
    for name, tensor in state.items():
        columns = name.endswith((".wo.weight", ".w2.weight")) or (name == "tok_embeddings.weight" and not by_rows)
        pieces = tensor.chunk(count, 1 if columns else 0) if tensor.dim() == 2 else [tensor] * count
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece.clone()
    return parts


def write(place: Path, params: dict[str, Any], state: State, count: int, by_rows: bool = False) -> Path:
    place.mkdir(parents=True)
    (place / "params.json").write_text(json.dumps(params))
    head = params["dim"] // params["n_heads"]
    for number, part in enumerate(slices(state, count, by_rows)):
        torch.save(part | {"rope.freqs": torch.ones(head // 2)}, place / f"consolidated.{number:02d}.pth")
    return place


def check(source: Path, tmp_path: Path, expected: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    """Hugging Face's files directly and through Megatron's are the same, and have the expected logits. Returns config.json."""
    conversion.convert(Request(str(source), "hf", str(tmp_path / "hf")))
    conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "megatron")))
    conversion.convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    direct, through = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back"))
    assert direct.keys() == through.keys()
    assert all(torch.equal(tensor, through[name]) for name, tensor in direct.items())
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32, attn_implementation="eager").eval()
        torch.testing.assert_close(model(tokens[None]).logits[0].double(), expected, rtol=1e-4, atol=1e-4)
    config: dict[str, Any] = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config == json.loads((tmp_path / "back" / "config.json").read_text())
    return config


TOKENS = (torch.arange(48) * 29 + 5) % VOCABULARY


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama-2", 1), ("llama-2", 2), ("llama-2-70b", 8), ("llama-3.1", 1), ("llama-3.1", 4), ("llama-3.1", 8)],
)
def test_files_of_meta(name: str, count: int, tmp_path: Path) -> None:
    params = META[name]
    state = state_of(params)
    source = write(tmp_path / "source", params, state, count, by_rows=name == "llama-3.1")
    config = check(source, tmp_path, logits(state, params, TOKENS), TOKENS)
    assert config["max_position_embeddings"] == (131072 if name == "llama-3.1" else 4096)
    restored = load_file(tmp_path / "hf" / "model.safetensors")
    assert torch.equal(restored["model.layers.1.mlp.down_proj.weight"], state["layers.1.feed_forward.w2.weight"])


def test_rows_of_transformers(tmp_path: Path) -> None:
    """transformers' convert_llama_weights_to_hf.py splits each head's rows into pairs and transposes the pairs."""
    params = META["llama-2-70b"]
    state = state_of(params)
    conversion.convert(Request(str(write(tmp_path / "source", params, state, 4)), "hf", str(tmp_path / "hf")))
    restored = load_file(tmp_path / "hf" / "model.safetensors")
    for ours, theirs, heads in (("q", "wq", 16), ("k", "wk", 8)):
        rows = state[f"layers.0.attention.{theirs}.weight"]
        expected = rows.view(heads, len(rows) // heads // 2, 2, 64).transpose(1, 2).reshape(rows.shape)
        assert torch.equal(restored[f"model.layers.0.self_attn.{ours}_proj.weight"], expected)


def write_mistral(place: Path, params: dict[str, Any], form: str) -> State:
    state = state_of(params)
    if form == "pth":
        write(place, params, state, 1)
        return state
    place.mkdir()
    (place / "params.json").write_text(json.dumps(params))
    names = ["consolidated.safetensors"] if form == "one" else [f"consolidated-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for number, name in enumerate(names):
        save_file(dict(list(state.items())[number :: len(names)]), place / name)
    if form == "indexed":
        weight_map = {key: names[position % 3] for position, key in enumerate(state)}
        (place / "consolidated.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return state


@pytest.mark.parametrize("name", MISTRAL)
@pytest.mark.parametrize("form", ["one", "indexed", "shards", "pth"])
def test_files_of_mistral(name: str, form: str, tmp_path: Path) -> None:
    params = MISTRAL[name]
    state = write_mistral(tmp_path / "source", params, form)
    config = check(tmp_path / "source", tmp_path, logits(state, params, TOKENS), TOKENS)
    assert config["model_type"] == {"mistral-v0.1": "mistral", "nemo": "llama", "mixtral": "mixtral"}[name]


def test_llama_32_has_one_matrix_and_another_factor(tmp_path: Path) -> None:
    """Meta's 1B and 3B store no output layer, or one that shares the storage of the embedding."""
    params = META["llama-3.1"] | {"dim": 2048, "n_heads": 32, "n_kv_heads": 1, "n_layers": 1, "head_dim": None}
    state = {name: tensor for name, tensor in state_of({**params, "head_dim": 8}).items() if name != "output.weight"}
    for number, more in enumerate(({}, {"output.weight": state["tok_embeddings.weight"]})):
        place = tmp_path / f"source{number}"
        place.mkdir()
        (place / "params.json").write_text(json.dumps(params | {"head_dim": 8}))
        torch.save(state | more, place / "consolidated.00.pth")
        conversion.convert(Request(str(place), "hf", str(tmp_path / f"hf{number}")))
        config = json.loads((tmp_path / f"hf{number}" / "config.json").read_text())
        assert config["tie_word_embeddings"] is True
        assert config["rope_parameters" if "rope_parameters" in config else "rope_scaling"]["factor"] == 32.0
        assert "lm_head.weight" not in load_file(tmp_path / f"hf{number}" / "model.safetensors")


def test_the_directory_original_of_a_repository(models: dict[str, Path], tmp_path: Path) -> None:
    """Above it are the configuration for transformers, with the positions, and the tokenizer."""
    params = META["llama-3.1"]
    write(tmp_path / "model" / "original", params, state_of(params), 1, by_rows=True)
    config = json.loads((models["scaled"] / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 777}))
    vocabulary = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": vocabulary, "added_tokens": []}))
    conversion.convert(Request(str(tmp_path / "model" / "original"), "hf", str(tmp_path / "hf")))
    converted = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert converted["max_position_embeddings"] == 777
    assert (tmp_path / "hf" / "tokenizer.json").is_file()


def refuse(source: Path, message: str) -> None:
    with pytest.raises(ToolError, match=message) as error:
        conversion.convert(Request(str(source), "megatron-dist", str(source.parent / "refused")))
    assert isinstance(error.value, BadData)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_encoder": {"dim": 3}}, r"^[^:]*/params\.json: has vision_encoder, which no model here has"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "has quantization"),
        ({"lora_args": {"rank": 16}}, "has lora_args"),
        ({"vocab_size": 65}, "vocab_size is 65, the files have 64"),
        ({"n_heads": 7}, "not the rows of 7 heads"),
        ({"n_heads": 10**12}, "no model is that large"),
        ({"n_heads": "8"}, "a size is no positive number"),
        ({"moe": {"num_experts": 4}}, "moe has not"),
        ({"dim": None}, "a size is no positive number"),
        ({"n_layers": 3}, "missing model.layers.2"),
        ({"rope_theta": [1]}, "not the settings"),
    ],
)
def test_settings_of_other_models(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source", META["llama-2"], state_of(META["llama-2"]), 1)
    (source / "params.json").write_text(json.dumps(META["llama-2"] | change))
    refuse(tmp_path / "source", message)


def test_missing_slices(tmp_path: Path) -> None:
    state = state_of(META["llama-3.1"])
    source = write(tmp_path / "source", META["llama-3.1"], state, 4, by_rows=True)
    (source / "consolidated.01.pth").rename(tmp_path / "aside")
    refuse(source, r"consolidated\.01\.pth: missing")
    (tmp_path / "aside").rename(source / "consolidated.01.pth")
    torch.save({"norm.weight": state["norm.weight"]}, source / "consolidated.03.pth")
    refuse(source, "is in 3 of 4 files")
    (source / "consolidated.03.pth").unlink()
    # Three files have 6 of 8 heads.
    refuse(source, r"source/consolidated\.03\.pth: missing: the model was split into 4 files")
    torch.save(state | {"layers.0.attention.wq.lora_A": torch.ones(2, 2)}, tmp_path / "one")
    for path in source.glob("*.pth"):
        path.unlink()
    (tmp_path / "one").rename(source / "consolidated.00.pth")
    refuse(source, "is no tensor of Llama or Mistral")
