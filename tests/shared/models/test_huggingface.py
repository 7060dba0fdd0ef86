"""config.json means to transformers what the architecture means here."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, RopeScaling
from lt_shared.models.huggingface import from_config, model_type, to_config
from lt_shared.models.presets import PRESETS, preset

GPTS = [name for name, architecture in PRESETS.items() if architecture.family == "gpt"]
LLAMAS = [name for name, shape in PRESETS.items() if shape.family == "llama" and shape.latent_attention is None]
TYPES = {"tiny": "llama", "tiny-mistral": "mistral", "tiny-qwen2": "qwen2", "tiny-qwen3": "qwen3", "tiny-mixtral": "mixtral"}
SCALED = preset("llama3.2-1b")


def saved(config: dict[str, Any], directory: Path) -> LlamaConfig:
    (directory / "config.json").write_text(json.dumps(config))
    return AutoConfig.from_pretrained(directory)


@pytest.mark.parametrize("name", LLAMAS)
def test_transformers_reads_the_same_architecture(tmp_path: Path, name: str) -> None:
    architecture = preset(name)
    config = saved(to_config(architecture, "bfloat16"), tmp_path)
    assert config.dtype == torch.bfloat16
    assert (config.hidden_size, config.intermediate_size) == (architecture.hidden_size, architecture.ffn_hidden_size)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (
        architecture.num_attention_heads,
        architecture.num_query_groups,
        architecture.kv_channels,
    )
    # Qwen2-MoE writes 0 where there is no window.
    assert (getattr(config, "sliding_window", None) or None) == architecture.sliding_window
    experts = {getattr(config, name, None) for name in ("num_local_experts", "num_experts")}
    # Granite 4 writes 0 where there are none.
    # Nemotron-H has a number of experts for layers that may not be there.
    assert architecture.mlp_layers or experts - {None, 0} == {architecture.num_experts} - {None}
    epsilon = "layer_norm_epsilon" if architecture.mlp_layers else "rms_norm_eps"
    assert getattr(config, epsilon) == architecture.norm_epsilon
    assert config.tie_word_embeddings == architecture.tie_embeddings
    if architecture.mlp_layers:
        return
    rope = config.rope_parameters
    if architecture.local_rotary_base:
        assert rope["sliding_attention"] == {"rope_type": "default", "rope_theta": architecture.local_rotary_base}
        rope = rope["full_attention"]
    # OLMo Hybrid's is null where it rotates nothing.
    assert rope["rope_theta"] == (None if architecture.gated_delta and architecture.no_rope_freq else architecture.rotary_base)
    if architecture.rope_scaling:
        given = json.loads(json.dumps(dataclasses.asdict(architecture.rope_scaling)))
        assert {field: rope.get(field) for field in given} == given
    else:
        assert rope["rope_type"] == "default"


def expected_frequencies(architecture: Architecture) -> torch.Tensor:
    """Inverse frequencies of RoPE with Llama 3.1's scaling, written from its description: wavelengths beyond the original
    context are stretched by the factor, short ones kept, those between interpolated."""
    exponents = torch.arange(0, architecture.kv_channels, 2, dtype=torch.float64) / architecture.kv_channels
    frequencies = architecture.rotary_base**-exponents
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * torch.pi)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


@pytest.mark.parametrize("spelling", ["both", "rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["llama2-7b", "llama3-8b", "llama3.1-8b", "llama3.2-1b"])
def test_the_frequencies_are_the_same_in_either_spelling(tmp_path: Path, name: str, spelling: str) -> None:
    architecture = preset(name)
    written = to_config(architecture, "float32")
    if spelling == "rope_scaling":
        del written["rope_parameters"]
    if spelling == "rope_parameters":
        del written["rope_scaling"], written["rope_theta"]
    frequencies = LlamaRotaryEmbedding(saved(written, tmp_path)).inv_freq
    torch.testing.assert_close(frequencies.double(), expected_frequencies(architecture), rtol=1e-5, atol=0)
    assert from_config(written, name) == architecture


@pytest.mark.parametrize("name", LLAMAS)
def test_round_trip(name: str) -> None:
    assert from_config(json.loads(json.dumps(to_config(preset(name), "float32"))), name) == preset(name)


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    config.save_pretrained(tmp_path)
    architecture = from_config(json.loads((tmp_path / "config.json").read_text()), "small")
    assert architecture.rope_scaling == RopeScaling(32.0)
    assert architecture.rotary_base == 500000
    assert (architecture.kv_channels, architecture.num_query_groups, architecture.ffn_hidden_size) == (16, 2, 96)


@pytest.mark.parametrize("name", TYPES)
def test_every_family_has_its_type_and_its_tensors(tmp_path: Path, name: str) -> None:
    """The model that transformers makes of it has biases, norms and experts where the architecture has them."""
    config = saved(to_config(preset(name), "float32"), tmp_path)
    assert config.model_type == TYPES[name] == model_type(preset(name))
    with torch.device("meta"):
        layer = dict(AutoModelForCausalLM.from_config(config).model.layers[0].named_parameters())
    assert ("self_attn.q_proj.bias" in layer) == preset(name).add_qkv_bias
    assert ("self_attn.q_norm.weight" in layer) == preset(name).qk_layernorm
    assert any("expert" in key for key in layer) == bool(preset(name).num_experts)
    config.save_pretrained(tmp_path)
    assert from_config(json.loads((tmp_path / "config.json").read_text()), name) == preset(name)


def test_a_mistral_without_a_window_is_a_llama() -> None:
    config = to_config(preset("mistral-7b"), "bfloat16") | {"sliding_window": None}
    assert model_type(from_config(config, "mistral-7b-v0.2")) == "llama"


@pytest.mark.parametrize("change", [{"qk_layernorm": True, "add_qkv_bias": True}, {"rotary_percent": 0.5}])
def test_features_that_no_type_has_together(change: dict[str, Any]) -> None:
    architecture = dataclasses.replace(SCALED, **change)
    assert model_type(architecture) is None
    with pytest.raises(BadConfig, match="no Hugging Face form"):
        to_config(architecture, "float32")


def test_files_from_before_grouped_queries_are_read() -> None:
    config = to_config(preset("llama2-7b"), "float16")
    for field in ("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings"):
        del config[field]
    assert from_config(config, "llama2-7b") == preset("llama2-7b")


def test_the_older_name_of_the_scaling_type_is_read() -> None:
    config = to_config(SCALED, "float32")
    del config["rope_parameters"]
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    assert from_config(config, SCALED.name) == SCALED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bloom"}, "model type 'bloom'"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window is True"),
        ({"model_type": "mistral"}, "has no 'sliding_window'"),
        ({"model_type": "mixtral", "sliding_window": None}, "has no 'num_local_experts'"),
        ({"attention_bias": True}, "attention_bias is True, the llama family here has False"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5"),
        ({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}}, r"partial_rotary_factor is 0\.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling type 'dynamic'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope scaling has no factor"),
        (
            {"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
            "scaling has no low_freq_factor",
        ),
        ({"rope_scaling": "llama3"}, "malformed"),
        ({"hidden_size": "2048"}, "malformed"),
        ({"hidden_size": 2047, "head_dim": None}, "not divisible"),
        ({"rms_norm_eps": None}, "malformed: norm_epsilon is None"),
        ({"rms_norm_eps": float("inf")}, "norm_epsilon is inf"),
        ({"tie_word_embeddings": "false"}, "malformed: tie_embeddings is 'false'"),
        ({"num_hidden_layers": 4.0}, r"malformed: num_layers is 4\.0"),
        ({"num_key_value_heads": 0}, "num_query_groups is 0"),
        ({"hidden_size": 10**30}, "hidden_size is 10000"),
        ({"rope_scaling": None, "rope_parameters": None, "rope_theta": 0}, r"rotary_base is 0\.0"),
        ({"rope_scaling": None, "rope_parameters": None, "rope_theta": "1e4"}, "malformed: rotary_base is '1e4'"),
        ({"rope_scaling": None, "rope_parameters": None, "rope_theta": 10**400}, "malformed"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized with fp8 without weight_block_size"),
        # The older field alone decides for transformers 5.
        ({"rope_scaling": {"rope_type": "default"}}, "rope_scaling and rope_parameters contradict"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_scaling and rope_parameters contradict"),
        ({"rope_theta": 1234.0}, "rope_theta and rope_parameters contradict"),
    ],
)
def test_what_has_no_place_here_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(to_config(SCALED, "float32") | change, "model")


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_rope_fields_that_agree_are_read(spelling: str) -> None:
    """What one of them leaves out comes from the fields beside it; numbers may be written without a fraction."""
    config = to_config(SCALED, "float32")
    config[spelling] |= {"factor": int(config[spelling]["factor"])}
    assert from_config(config, SCALED.name) == SCALED
    del config["rope_parameters"]["rope_theta"]
    assert from_config(config | {"rope_theta": int(SCALED.rotary_base)}, SCALED.name) == SCALED


def test_transformers_takes_the_older_rope_field(tmp_path: Path) -> None:
    """Which is why files whose two fields differ are refused."""
    config = to_config(SCALED, "float32")
    config["rope_scaling"]["factor"] = 2.0
    assert saved(config, tmp_path).rope_parameters["factor"] == 2.0
    with pytest.raises(BadConfig, match="rope_scaling and rope_parameters contradict"):
        from_config(config, SCALED.name)


@pytest.mark.parametrize("field", ["hidden_size", "rms_norm_eps", "vocab_size"])
def test_a_missing_size_is_named(field: str) -> None:
    config = to_config(SCALED, "float32")
    del config[field]
    with pytest.raises(BadConfig, match=f"model: config.json has no '{field}'"):
        from_config(config, "model")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", GPTS)
def test_the_gpt_style_is_gpt2(tmp_path: Path, name: str, tied: bool) -> None:
    """Megatron's GPT-3 style with an untied output has a form there too."""
    architecture = dataclasses.replace(preset(name), tie_embeddings=tied, ffn_hidden_size=96)
    written = to_config(architecture, "bfloat16")
    config = saved(written, tmp_path)
    assert isinstance(config, GPT2Config)
    assert (config.n_embd, config.n_inner, config.n_layer, config.n_head, config.n_positions) == (
        architecture.hidden_size,
        96,
        architecture.num_layers,
        architecture.num_attention_heads,
        architecture.max_position_embeddings,
    )
    assert (config.tie_word_embeddings, config.layer_norm_epsilon) == (tied, architecture.norm_epsilon)
    # llama.cpp's converter reads no other name.
    assert written["n_ctx"] == architecture.max_position_embeddings
    config.save_pretrained(tmp_path)
    assert from_config(json.loads((tmp_path / "config.json").read_text()), name) == architecture == from_config(written, name)


def test_a_gpt2_of_2019_is_read() -> None:
    """Its file says nothing of the feed-forward size, nor of tied embeddings."""
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    architecture = from_config(config | {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}, "gpt2")
    assert (architecture.ffn_hidden_size, architecture.tie_embeddings, architecture.parameters()) == (3072, True, 124439808)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function is 'gelu', the gpt2 family here has gelu_new or"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"n_head": "12"}, "malformed"),
    ],
)
def test_another_gpt2_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=f"model: .*{message}"):
        from_config(to_config(preset("tiny-gpt3"), "float32") | change, "model")


@pytest.mark.parametrize("change", [{"num_query_groups": 2}, {"kv_channels": 64}, {"qk_layernorm": True}])
def test_a_gpt_that_gpt2_is_not(change: dict[str, Any]) -> None:
    architecture = dataclasses.replace(preset("tiny-gpt3"), **change)
    assert model_type(architecture) is None
    with pytest.raises(BadConfig, match="no Hugging Face form"):
        to_config(architecture, "float32")


@pytest.mark.parametrize("config", [Qwen3Config(hidden_size=1024), MixtralConfig()], ids=["qwen3", "mixtral"])
def test_what_a_type_takes_for_granted(config: Any) -> None:
    """A file without the size of a head, and without the base of the rotary embedding."""
    bare = {name: value for name, value in config.to_dict().items() if name not in ("head_dim", "rope_parameters")}
    architecture = from_config(bare, "bare")
    assert architecture.kv_channels == (config.head_dim or config.hidden_size // config.num_attention_heads)
    assert architecture.rotary_base == config.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("llama4_text", "attention in chunks"),
        ("jamba", "state-space layers of Mamba-1, whose decay differs by channel"),
        ("minimax", "lightning attention, whose decays are constants"),
        ("deepseek_v4", r"hc_mult \(several residual streams\), compress_rates .*, and would need them in the layers"),
        ("recurrent_gemma", "a recurrence that is neither gated delta nor Mamba-2"),
        ("gemma3n_text", "embeddings for every layer"),
        ("gemma4_text", r"norms of values, .*hidden_size_per_layer_input 256 .*, global_head_dim 512 .*, and would need them"),
        ("phimoe", "a router that chooses its two experts one after the other, in training at random"),
    ],
)
def test_a_model_that_cannot_be_computed_is_refused_with_what_it_would_need(kind: str, reason: str) -> None:
    """As transformers describes it: none of its settings is read first."""
    with pytest.raises(BadConfig, match=f"run: {kind} models have {reason}"):
        from_config(AutoConfig.for_model(kind).to_dict(), "run")


def test_an_indexer_is_not_passed_over() -> None:
    """DeepSeek-V3.2's, under the name of DeepSeek-V3."""
    config = to_config(preset("tiny-deepseek-v3"), "float32") | {"index_topk": 2048}
    with pytest.raises(
        BadConfig, match=r"run: index_topk is 2048 .sparse attention., which only deepseek_v32 and glm_moe_dsa have here"
    ):
        from_config(config, "run")


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("tiny-glm-5", {"indexer_types": ["full", "shared", "full", "full"]}, "indexer_types has shared: layers that take"),
        ("tiny-glm-5", {"indexer_types": None, "index_topk_freq": 2}, "index_topk_freq is 2: layers that take"),
        ("tiny-deepseek-v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave is True, the deepseek_v32 family here"),
        ("tiny-deepseek-v32", {"mlp_layer_types": ["sparse", "dense"] * 2}, "only first layers without experts"),
        ("tiny-deepseek-v32", {"q_lora_rank": None}, "without a latent of the queries"),
        ("tiny-deepseek-v32", {"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_an_indexer_of_another_kind_is_refused(name: str, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(to_config(preset(name), "float32") | setting, "run")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bitnet", "its settings are those of"),
        ("vaultgemma", "gemma2"),
        ("gptj", "the nearest is gpt2, which does not have attn_pdrop, embd_pdrop, resid_pdrop, rotary_dim"),
        ("opt", "guides/models.md lists the families"),
    ],
)
def test_an_unknown_type_is_refused_with_the_nearest_type(kind: str, words: str) -> None:
    with pytest.raises(BadConfig, match=f"run: model type '{kind}' is not known here") as refusal:
        from_config(AutoConfig.for_model(kind).to_dict(), "run")
    assert words in (refusal.value.hint or "")
