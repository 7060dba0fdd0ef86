"""Commands of Megatron-LM's pretrain_hybrid.py: models are those of pretrain_gpt.py, and checkpoints are HybridModel's."""

import dataclasses
from typing import Any

import pytest
from layouts import assembled

from lt_shared.console import BadConfig, BadData
from lt_shared.models.architecture import Mamba
from lt_shared.models.presets import preset
from lt_train.importers import megatron_lm
from lt_train.importers.effects import Effect

MODEL = (
    "--hidden-size 128 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --swiglu "
    "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--train-iters 4 --lr 1e-3 --bf16 --vocab-size 2048"
)
SPEC = "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"


def translated(pattern: str, more: str = "", program: str = "pretrain_hybrid.py") -> Any:
    words = ["torchrun", program, *MODEL.split(), *SPEC.split(), "--hybrid-layer-pattern", pattern, *more.split()]
    return megatron_lm.translate(words)


def options(pattern: str, more: str = "") -> dict[str, Any]:
    translation = translated(pattern, more)
    assert not translation.lost(Effect.MODEL), translation.lost(Effect.MODEL)
    assert not translation.lost(Effect.RUN), translation.lost(Effect.RUN)
    return dict(translation.options)


def test_it_is_the_model_of_pretrain_gpt() -> None:
    hybrid = options("*-*-*-", "--num-layers 6")
    gpt = megatron_lm.translate(["torchrun", "pretrain_gpt.py", "--num-layers", "3", *MODEL.split()]).options
    assert hybrid == {**gpt, "ckpt_layout": "hybrid"}
    words = [
        f"--{name.replace('_', '-')}={hybrid[name]}"
        for name in ("num_layers", "hidden_size", "num_attention_heads", "ckpt_layout")
    ]
    config = assembled([*words, "--mock-data"])
    assert (config.architecture.num_layers, config.checkpointing.saves_hybrid_layers(False)) == (3, True)


def test_experts() -> None:
    experts = "--num-experts 4 --moe-ffn-hidden-size 64 --moe-router-topk 2"
    assert "moe_layer_freq" not in options("*E*E", experts)
    assert options("*-*E*E", experts)["moe_layer_freq"] == "([0]*1+[1]*2)"
    without = options("*-*-", experts)
    assert not [name for name in without if name.startswith("moe_") or name == "num_experts"]


TWO_STAGES = "--pipeline-model-parallel-size 2"
VIRTUAL, LAYOUT = "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout"
FIRST, LAST, RECOMPUTED = megatron_lm.hybrid_model.COUNTS


@pytest.mark.parametrize(
    ("pattern", "more", "expected"),
    [
        ("*-*-|*-*-", TWO_STAGES, {}),
        ("*-|*-|*-|*-", TWO_STAGES, {VIRTUAL: 2}),
        ("*-*-|*-", TWO_STAGES, {LAYOUT: "Ett|tL"}),
        ("*-|*-*-|*-|*-", TWO_STAGES, {LAYOUT: "Et|tt|t|tL"}),
        ("*-*-*-", f"{TWO_STAGES} --decoder-first-pipeline-num-layers 4", {FIRST: 2}),
        ("*-*-", "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", {RECOMPUTED: 1}),
    ],
)
def test_counts_of_layers(pattern: str, more: str, expected: dict[str, Any]) -> None:
    result = options(pattern, more)
    assert {name: result[name] for name in (VIRTUAL, LAYOUT, FIRST, LAST, RECOMPUTED) if name in result} == expected


@pytest.mark.parametrize(
    ("pattern", "more", "reason"),
    [
        ("M-M-", "", "another kind of attention"),
        ("M-ME*-", "--num-experts 4", "experts in some MLPs"),
        ("M-XM*", "", "no kind of layer"),
        ("MEM*E", "", "has experts"),
        ("*-G-", "", "gated delta layer"),
        ("*-*-/*-", "", "multi-token prediction"),
        ("**--", "", "attention and an MLP in turns"),
        ("*E*-", "--num-experts 4", "dense layers behind experts"),
        ("*E*E", "", "has experts"),
        ("+-+-", "", "latent attention"),
        ("*-|*-|*-", "--pipeline-model-parallel-size 2", "3 stages for 2 pipeline ranks"),
    ],
)
def test_other_patterns_are_refused(pattern: str, more: str, reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        translated(pattern, more)


def test_without_a_pattern_all_layers_are_of_another_kind() -> None:
    with pytest.raises(BadData, match="Mamba-2 layers alone"):
        megatron_lm.translate(["torchrun", "pretrain_hybrid.py", *MODEL.split()])


NEMOTRON_H = (
    "--hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--kv-channels 128 --mamba-state-dim 128 --mamba-head-dim 64 --mamba-num-groups 8 --mamba-num-heads 128 --squared-relu "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type none --untie-embeddings-and-output-weights "
    "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --train-iters 4 --lr 1e-3 --vocab-size 131072 "
    "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --is-hybrid-model --num-layers 52 "
    "--hybrid-override-pattern M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
)


def words_of(options: dict[str, Any]) -> list[str]:
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in options.items()
        if value is not False
    ]


@pytest.mark.parametrize("program", ["pretrain_mamba.py", "pretrain_hybrid.py"])
def test_nemotron_h(program: str) -> None:
    """NVIDIA's options for Nemotron-H 8B are the preset, whose time steps have a least value."""
    translation = megatron_lm.translate(["torchrun", program, *NEMOTRON_H.split()])
    assert not translation.lost(Effect.MODEL)
    assert not translation.lost(Effect.RUN)
    model = assembled([*words_of(dict(translation.options)), "--mock-data"]).architecture
    expected = preset("nemotron-h-8b")
    assert expected.mamba is not None
    mamba = dataclasses.replace(expected.mamba, least_step=0.0)
    assert model == dataclasses.replace(expected, name="custom", mamba=mamba)


@pytest.mark.parametrize(
    ("pattern", "frequency", "expected"),
    [("*-*-*-*-", "4", None), ("*-*-*-", "([0]*2+[1]*1+[0]*3)", 2), ("*-*-", "1", 1), ("M*M*", "2", 2), ("*-*-", "2", None)],
)
def test_no_rope_freq_counts_the_layers_of_hybrid_model(pattern: str, frequency: str, expected: int | None) -> None:
    assert options(pattern, f"--no-rope-freq {frequency} --mamba-num-groups 2").get("no_rope_freq") == expected


def test_other_layers_without_rotation_are_refused() -> None:
    assert translated("*-*-*-", "--no-rope-freq [1,0,0,0,0,0]").lost(Effect.MODEL)
    with pytest.raises(BadData, match="the layer pattern has 4 layers"):
        translated("*-*-", "--no-rope-freq 3")


def test_experts_of_mamba_layers() -> None:
    experts = "--num-experts 4 --moe-ffn-hidden-size 64 --moe-router-topk 2 --mamba-num-groups 2 --mamba-head-dim 32"
    result = options("MEM*|E", f"{experts} --pipeline-model-parallel-size 2")
    assert (result["hybrid_layer_pattern"], result[LAYOUT]) == ("MEM*E", "Etttt|tL")
    model = assembled(
        [*words_of(result), "--mock-data", "--pipeline-model-parallel-size=1", f"--{LAYOUT.replace('_', '-')}=EtttttL"]
    )
    assert model.architecture.mlp_layers == (1, 4)
    assert model.architecture.mamba == Mamba((0, 2), 8, 32, mamba_num_groups=2)


@pytest.mark.parametrize(
    ("pattern", "more", "message"),
    [
        ("M-M*-", "--num-layers=6", "has 5 layers, and --num-layers is 6"),
        ("M-M*E", "--num-experts=4", "experts in some MLPs"),
        ("M-M*-", "--num-experts=4", "has no experts"),
        ("MEM*E", "", "has experts"),
        ("M-|M*-", "", "borders of pipeline stages"),
        ("M-M-", "", "needs Mamba-2 .M. and attention"),
        ("*-*-", "", "needs Mamba-2 .M. and attention"),
        ("M-G*", "", "gated delta layer"),
        (None, "--mamba-head-dim=32", "a model without Mamba-2 layers"),
    ],
)
def test_patterns_that_no_model_has(pattern: str | None, more: str, message: str) -> None:
    words = [f"--hybrid-layer-pattern={pattern}"] if pattern else ["--num-layers=2"]
    sizes = ["--hidden-size=128", "--num-attention-heads=4", "--position-embedding-type=rope", "--normalization=RMSNorm"]
    with pytest.raises(BadConfig, match=message):
        assembled([*words, *sizes, "--disable-bias-linear", "--swiglu", *more.split(), "--mock-data"])
