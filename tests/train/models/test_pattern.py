"""Which modules a block is made of, by model and kernels; nothing is built."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION
from lt_shared.models.presets import preset
from lt_train.models import pattern
from lt_train.models.decoder import Stage
from lt_train.models.pattern import ExpertKernels, Pattern

KINDS = (
    *(
        "Block",
        "FusedBlock",
        "Blocks",
        "Attention",
        "LatentAttention",
        "CausalAttention",
        "FlashAttention",
        "MLP",
        "GatedGemmMLP",
    ),
    *("LocalMoE", "ExchangingMoE", "DispatchingMoE", "Router", "GroupedExperts", "sequential_experts"),
    *("norm", "summing_norm", "last_norm", "IdentityOp"),
)
TORCH = {"norm": "torch", "rope": "torch", "swiglu": "torch", "attention": "sdpa", "fp8_cast": None, "recomputes_swiglu": False}


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Every module in the order in which it is built: its kind and arguments."""
    modules: list[tuple[str, Any, Any]] = []
    for kind in KINDS:
        monkeypatch.setattr(pattern, kind, lambda *parts, kind=kind, **options: modules.append((kind, parts, options)) or kind)
    monkeypatch.setattr(pattern, "torch_activation", lambda config: "torch's activation")
    monkeypatch.setattr(pattern, "get_num_layers_to_build", lambda config, number: config.num_layers)
    monkeypatch.setattr(pattern, "get_transformer_layer_offset", lambda config, number: 0)
    return modules


def pattern_of(
    architecture: Architecture,
    *,
    ranks: int = 1,
    grouped: bool = True,
    exchanges: bool = False,
    tensors: bool = False,
    **parts: Any,
) -> Pattern:
    config: Any = SimpleNamespace(
        num_layers=architecture.num_layers,
        hidden_size=8,
        ffn_hidden_size=16,
        layernorm_epsilon=1e-5,
        num_moe_experts=architecture.num_experts,
        moe_shared_expert_intermediate_size=None,
        moe_shared_expert_gate=False,
    )
    experts = ExpertKernels("operations" if grouped else None, exchanges, False, False)  # type: ignore[arg-type]
    whole: Any = Pattern(config, architecture, SimpleNamespace(**TORCH | parts), experts, *[None] * 4, True, tensors)  # type: ignore[arg-type]
    vars(whole)["_groups"] = SimpleNamespace(ep=SimpleNamespace(size=lambda: ranks))
    return whole  # type: ignore[no-any-return]


def kinds(modules: list[tuple[str, Any, Any]]) -> set[str]:
    return {kind for kind, _, _ in modules}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, {"Block", "Attention", "CausalAttention", "MLP", "norm"}),
        ({"norm": "triton"}, {"FusedBlock", "Attention", "CausalAttention", "MLP", "summing_norm"}),
        ({"attention": "flash-attn-4"}, {"Block", "Attention", "FlashAttention", "MLP", "norm"}),
        ({"swiglu": "gemm-epilogue"}, {"Block", "Attention", "CausalAttention", "GatedGemmMLP", "norm"}),
    ],
)
def test_kernels_choose_the_modules_of_a_block(parts: dict[str, str], expected: set[str], built: list[Any]) -> None:
    pattern_of(preset("tiny"), **parts)._block(1, adds=True)
    assert kinds(built) == expected


@pytest.mark.parametrize(
    ("parts", "activation"),
    [
        ({"swiglu": "triton"}, "swiglu_kernel"),
        ({"swiglu": "torch"}, "torch's activation"),
        # The second layer's cast to fp8 computes it.
        ({"swiglu": "triton", "fp8_cast": "triton", "recomputes_swiglu": True}, None),
        ({"swiglu": "triton", "fp8_cast": "triton"}, "swiglu_kernel"),
    ],
)
def test_who_computes_swiglu(parts: dict[str, Any], activation: str | None, built: list[Any]) -> None:
    pattern_of(preset("tiny"), **parts)._block(1, adds=True)
    (mlp,) = (arguments for kind, arguments, _ in built if kind == "MLP")
    assert getattr(mlp[3], "__name__", mlp[3]) == activation


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"LocalMoE", "GroupedExperts"}),
        ({"ranks": 2}, {"DispatchingMoE", "GroupedExperts"}),
        ({"ranks": 2, "exchanges": True}, {"ExchangingMoE", "GroupedExperts"}),
        ({"grouped": False}, {"DispatchingMoE", "sequential_experts"}),
        ({"ranks": 2, "grouped": False}, {"DispatchingMoE", "sequential_experts"}),
    ],
)
def test_the_ways_of_tokens_to_experts(settings: dict[str, Any], expected: set[str], built: list[Any]) -> None:
    pattern_of(preset("tiny-mixtral"), **settings)._block(1, adds=True)
    assert kinds(built) == expected | {"Block", "Attention", "CausalAttention", "norm", "Router"}


def test_layers_that_differ(built: list[Any]) -> None:
    """DeepSeek's first layers are dense, some of Gemma 3's have a window, and OLMo 2's norms are behind."""
    deepseek = pattern_of(preset("tiny-deepseek-v3"))
    deepseek._block(1, adds=True)
    assert "MLP" in kinds(built) and "LatentAttention" in kinds(built) and not kinds(built) & {"LocalMoE"}
    deepseek._block(preset("tiny-deepseek-v3").num_layers, adds=True)
    assert "LocalMoE" in kinds(built)
    built.clear()
    pattern_of(preset("tiny-olmo2"))._block(1, adds=True)
    assert "IdentityOp" in kinds(built) and "norm" not in kinds(built)


def test_each_layer_has_its_mixer(built: list[Any]) -> None:
    """Norms have megatron-core's names before attention alone; layers of several kinds are not stored as one tensor of all."""
    model = dataclasses.replace(preset("tiny-deepseek-v2"), num_layers=3, moe_first_dense_layers=0)
    for mixers, expected in (
        ({LATENT_ATTENTION: range(3)}, [LATENT_ATTENTION] * 3),
        ({ATTENTION: (1,), LATENT_ATTENTION: (0, 2)}, [LATENT_ATTENTION, ATTENTION, LATENT_ATTENTION]),
    ):
        built.clear()
        vars(model)["mixers"] = mixers
        pattern_of(model).blocks(Stage(True, True, None))
        names = {"Attention": ATTENTION, "LatentAttention": LATENT_ATTENTION}
        assert [names[kind] for kind, _, _ in built if kind in names] == expected
        entries = [parts[5] for kind, parts, _ in built if kind == "Block"]
        assert [bool(names) for names in entries] == [kind == ATTENTION for kind in expected]
        (options,) = [options for kind, _, options in built if kind == "Blocks"]
        assert options["has_one_kind"] == (len(mixers) == 1)


def test_the_stream_between_blocks_and_stages(built: list[Any]) -> None:
    """A block leaves its sum to the next norm; a pipeline sends a tensor, and recomputation keeps tensors."""
    model = preset("tiny")
    alone, first, last = Stage(True, True, None), Stage(True, False, None), Stage(False, True, None)
    for stage, tensors, expected in ((alone, False, False), (first, False, True), (last, False, False), (last, True, True)):
        built.clear()
        pattern_of(model, norm="triton", tensors=tensors).blocks(stage)
        adds = [options["adds"] for kind, _, options in built if kind == "FusedBlock"]
        assert adds == [tensors] * (model.num_layers - 1) + [expected]
        assert ("last_norm" in kinds(built)) == stage.is_last
