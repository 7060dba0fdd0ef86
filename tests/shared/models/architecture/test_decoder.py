"""Parameter counts and FLOPs against transformers' own models and against an independent count."""

import dataclasses
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Mistral4ForCausalLM, PreTrainedModel

from lt_shared.console import BadConfig
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, RopeScaling
from lt_shared.models.architecture.mixers import MIXERS
from lt_shared.models.presets import PRESETS

LLAMA = Architecture("small", "llama", 3, 64, 96, 8, 2, 500, 32)
GPT = Architecture("small-gpt", "gpt", 2, 48, 192, 4, 4, 300, 40, tie_embeddings=True)


def of_transformers(architecture: Architecture) -> PreTrainedModel:
    config = AutoConfig.for_model(**huggingface.to_config(architecture, "float32"))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


FEATURES: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "tied": {"tie_embeddings": True},
    "all heads": {"num_query_groups": 8},
    "head size of its own": {"kv_channels": 24},
    "mistral": {"sliding_window": 16},
    "qwen2": {"add_qkv_bias": True, "tie_embeddings": True},
    "qwen3": {"qk_layernorm": True, "kv_channels": 24},
    "mixtral": {"num_experts": 6, "moe_router_topk": 2},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_parameters_are_those_of_transformers(feature: str) -> None:
    architecture = dataclasses.replace(LLAMA, **FEATURES[feature])
    assert architecture.parameters() == count(of_transformers(architecture))


def test_active_parameters_leave_out_the_other_experts() -> None:
    experts = dataclasses.replace(LLAMA, num_experts=6, moe_router_topk=2)
    assert experts.parameters() - experts.active_parameters() == 3 * 4 * 3 * 64 * 96
    one = dataclasses.replace(LLAMA, num_experts=1, moe_router_topk=1)
    assert one.parameters() == one.active_parameters() == LLAMA.parameters() + 3 * 64
    assert LLAMA.active_parameters(512) == LLAMA.parameters(512)


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(1, 32, 4), (2, 48, 4), (5, 80, 10)])
def test_gpt_parameters_are_those_of_transformers(layers: int, hidden: int, heads: int) -> None:
    config = GPT2Config(vocab_size=300, n_positions=40, n_embd=hidden, n_layer=layers, n_head=heads)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    architecture = Architecture("gpt", "gpt", layers, hidden, 4 * hidden, heads, heads, 300, 40, tie_embeddings=True)
    assert architecture.parameters() == count(model)
    untied = dataclasses.replace(architecture, tie_embeddings=False)
    assert untied.parameters() - architecture.parameters() == 300 * hidden


def test_parameters_with_a_padded_vocabulary() -> None:
    assert LLAMA.padded_vocab_size() == 512
    assert LLAMA.parameters(512) - LLAMA.parameters() == 2 * 12 * 64
    assert GPT.parameters(384) - GPT.parameters() == 84 * 48


@pytest.mark.parametrize(
    ("vocab_size", "divisible_by", "tensor_parallel", "padded"),
    [(50257, 128, 1, 50304), (50257, 128, 8, 51200), (128256, 128, 8, 129024), (32000, 128, 2, 32000), (32000, 1, 1, 32000)],
)
def test_vocabulary_padding_is_megatrons(vocab_size: int, divisible_by: int, tensor_parallel: int, padded: int) -> None:
    assert dataclasses.replace(LLAMA, vocab_size=vocab_size).padded_vocab_size(divisible_by, tensor_parallel) == padded


@pytest.mark.parametrize("sequence_length", [8, 32])
def test_flops_are_those_that_torch_counts(sequence_length: int) -> None:
    """torch counts the whole attention square of the eager implementation; ours is the causal half of it."""
    model = of_transformers(LLAMA)
    tokens = torch.zeros(1, sequence_length, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens).logits.sum().backward()
    products = 2 * LLAMA.num_attention_heads * LLAMA.kv_channels * sequence_length
    causal_saving = LLAMA.num_layers * 3 * products
    assert LLAMA.flops_per_token(sequence_length) == counter.get_total_flops() // sequence_length - causal_saving


OF_FAMILIES = sorted(name for name, shape in PRESETS.items() if name.startswith("tiny") and shape.family == "llama")


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_flops_of_every_family_are_those_that_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its model of transformers, forward: latents, shared experts, chosen experts and the router. No window is as short."""
    shape = dataclasses.replace(PRESETS[name], mtp_num_layers=0)
    config = AutoConfig.for_model(**huggingface.to_config(shape, "float32"))
    if shape.query_temperature_beta and shape.latent_attention:
        # transformers 5.23's AutoModelForCausalLM does not know Mistral 4.
        model: Any = Mistral4ForCausalLM._from_config(config, attn_implementation="eager")
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    # torch does not count its grouped product.
    model.set_experts_implementation("eager")
    length, between_projections = 8, 0
    if shape.gated_delta:
        # transformers pads to a chunk of 64 tokens, and its convolution computes what it drops.
        module = sys.modules[type(model).__module__]
        rule = "chunk_kimi_delta_attention" if shape.gated_delta.decays_channels else "torch_chunk_gated_delta_rule"
        monkeypatch.setattr(module, rule, lambda query, key, value, **options: (value, None))
        monkeypatch.setattr(module, "causal_conv1d_fn", lambda channels, *arguments, **options: channels)
        delta = shape.gated_delta
        per_layer = 4 * delta.state_size + delta.linear_conv_kernel_dim * delta.convolved_size
        between_projections = 6 * len(delta.layers) * per_layer
    if shape.short_convolution:
        module = sys.modules[type(model).__module__]
        monkeypatch.setattr(module, "causal_conv1d_fn", lambda channels, *arguments, **options: channels)
        convolution = shape.short_convolution
        between_projections = 6 * len(convolution.layers) * convolution.taps * shape.hidden_size
    if shape.mamba:
        module, mamba = sys.modules[type(model).__module__], shape.mamba
        monkeypatch.setattr(module, "mamba2_chunk_scan", lambda values, *arguments, **options: values)
        monkeypatch.setattr(module, "causal_conv1d_fn", lambda channels, *arguments, **options: channels)
        per_layer = 7 * mamba.state_size // 2 + mamba.taps * mamba.convolved_size
        between_projections = 6 * len(mamba.layers) * per_layer
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(length)[None], use_cache=False)
    attention_layers = sum(len(layers) for mixer, layers in shape.mixers.items() if MIXERS[mixer].has_scores)
    causal_saving = attention_layers * (shape.query_size + shape.value_size) * length
    if shape.sparse_attention:
        # transformers scores all pairs, and torch counts the sums over the heads of the indexer.
        sums = 2 * shape.sparse_attention.dsa_indexer_n_heads
        causal_saving += attention_layers * (shape.sparse_attention.query_size + sums) * length
    assert shape.flops_per_token(length) - between_projections == 3 * (counter.get_total_flops() // length - causal_saving)


def test_flops_of_a_prediction_layer_are_those_of_a_layer_its_projection_and_the_output_layer() -> None:
    shape = PRESETS["tiny-deepseek-v3"]
    none, deeper = (dataclasses.replace(shape, mtp_num_layers=0, num_layers=layers) for layers in (4, 5))
    besides = 6 * (2 * shape.hidden_size**2 + shape.vocab_size * shape.hidden_size)
    assert shape.flops_per_token(64) == deeper.flops_per_token(64) + besides
    assert deeper.flops_per_token(64) > none.flops_per_token(64)


def test_flops_count_the_experts_of_a_token_and_the_router() -> None:
    experts = dataclasses.replace(LLAMA, num_experts=6, moe_router_topk=2)
    assert experts.flops_per_token(8) - LLAMA.flops_per_token(8) == 6 * 3 * (6 * 64 + 3 * 64 * 96)


def test_flops_of_a_sliding_window_are_those_of_its_pairs() -> None:
    """A triangle of queries that see all before them, then a band; as in the causal half, pairs on the diagonal count half."""
    windowed = dataclasses.replace(LLAMA, sliding_window=10)
    assert windowed.flops_per_token(10) == LLAMA.flops_per_token(10)
    pairs = sum(min(query, 10) - 0.5 * (query <= 10) for query in range(1, 33))
    saved = (32 * 32 / 2 - pairs) / 32
    per_pair = 12 * LLAMA.num_layers * LLAMA.query_size
    assert LLAMA.flops_per_token(32) - windowed.flops_per_token(32) == pytest.approx(per_pair * saved, abs=1)


def test_flops_of_the_gpt_family_count_two_matrices_in_the_mlp() -> None:
    layer = 4 * 48 * 48 + 2 * 48 * 192
    assert GPT.flops_per_token(40) == 6 * (2 * layer + 300 * 48) + 2 * 6 * 48 * 40


@given(scaling=st.none() | st.builds(RopeScaling, factor=st.floats(1, 64)), tie=st.booleans(), base=st.floats(1, 1e7))
def test_records_round_trip(scaling: RopeScaling | None, tie: bool, base: float) -> None:
    architecture = dataclasses.replace(LLAMA, rope_scaling=scaling, tie_embeddings=tie, rotary_base=base)
    assert Architecture.from_record(architecture.to_record()) == architecture


def test_records_of_another_version_are_refused() -> None:
    with pytest.raises(BadConfig, match="list instead of an object"):
        Architecture.from_record([])  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="unknown fields: experts"):
        Architecture.from_record(LLAMA.to_record() | {"experts": 8})
    record = LLAMA.to_record()
    del record["hidden_size"]
    with pytest.raises(BadConfig, match="hidden_size"):
        Architecture.from_record(record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"hidden_size": 100, "kv_channels": 0}, "hidden size 100 is not divisible by 8 attention heads"),
        ({"num_query_groups": 3}, "8 attention heads do not split into 3 query groups"),
        ({"kv_channels": 7}, "even head size"),
        ({"kv_channels": 12, "rotary_percent": 0.25}, "even head size, this one is 3"),
        ({"sliding_window": 0}, "sees nothing"),
        ({"hidden_size": 10**30}, "hidden_size is 1000000000000000000000000000000, must be positive and at most"),
        ({"norm_epsilon": 0.0}, "norm_epsilon is 0.0, must be positive and finite"),
        ({"norm_epsilon": float("inf")}, "norm_epsilon is inf, must be positive and finite"),
        ({"rotary_base": float("nan")}, "rotary_base is nan"),
        ({"init_std": -0.1}, "init_std is -0.1, must be finite"),
        ({"num_experts": 2, "moe_router_topk": 3}, "3 of 2 experts"),
        ({"num_experts": 2, "family": "gpt"}, "Llama style only"),
    ],
)
def test_sizes_that_contradict_each_other(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        dataclasses.replace(LLAMA, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 4.0}, "num_layers is 4.0, must be a whole number"),
        ({"num_layers": True}, "num_layers is True"),
        ({"norm_epsilon": None}, "norm_epsilon is None, must be a number"),
        ({"tie_embeddings": "false"}, "tie_embeddings is 'false', must be true or false"),
        ({"rope_scaling": {"factor": "8"}}, "factor is '8'"),
    ],
)
def test_a_record_with_other_types_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=f"architecture is incomplete or malformed: {message}"):
        Architecture.from_record(LLAMA.to_record() | change)
