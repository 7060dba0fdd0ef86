"""Scripts of MindSpeed-LLM: its names for layers, experts and the weights to start from."""

from typing import Any

import pytest

from lt_train.importers import megatron_lm
from lt_train.importers.effects import Effect

MODEL = (
    "--num-layers 6 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 192 --seq-length 64 --max-position-embeddings 64"
)
DENSE = (
    f"pretrain_gpt.py {MODEL} --train-iters 10 --lr 1e-4 --bf16 --position-embedding-type rope --normalization RMSNorm --swiglu"
)
DENSE = f"{DENSE} --disable-bias-linear --qk-layernorm --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec"
EXPERTS = f"{DENSE} --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48"


def imported(command: str) -> tuple[dict[str, Any], set[str]]:
    """The options of a command, and the keys whose loss makes another model or another run."""
    translation = megatron_lm.translate(command.split())
    lost = {entry.key for effect in (Effect.MODEL, Effect.RUN) for entry in translation.lost(effect)}
    return translation.record()["options"], lost


def test_the_spec_of_qwen3_builds_what_the_options_say() -> None:
    found, lost = imported(DENSE)
    assert (found["qk-layernorm"], found["num-layers"], lost) == (True, 6, set())
    assert imported(DENSE.replace("qwen3_spec", "gemma2_spec"))[1] == {"spec"}
    assert imported(DENSE.replace("layer_spec", "other_spec"))[1] == {"spec"}


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        # mindspeed_llm/core/transformer/transformer_block.py: experts in layers from k on whose number the frequency divides.
        ("--first-k-dense-replace 1", "[0,1,1,1,1,1]"),
        ("--first-k-dense-replace 3 --moe-layer-freq 1", "[0,0,0,1,1,1]"),
        ("--first-k-dense-replace 1 --moe-layer-freq 2", "[0,0,1,0,1,0]"),
        ("--first-k-dense-replace -1 --moe-layer-freq -1", None),
        ("--first-k-dense-replace 0 --moe-layer-freq -1", None),
        ("--first-k-dense-replace 0", None),
    ],
)
def test_the_layers_with_experts(options: str, pattern: str | None) -> None:
    found, lost = imported(f"{EXPERTS} {options}")
    assert (found.get("moe-layer-freq"), lost) == (pattern, set())


@pytest.mark.parametrize("options", ["--first-k-dense-replace few", "--first-k-dense-replace 1 --moe-layer-freq 0"])
def test_layers_that_cannot_be_counted_are_refused(options: str) -> None:
    assert "first_k_dense_replace" in imported(f"{EXPERTS} {options}")[1]


@pytest.mark.parametrize(
    ("options", "is_carried"),
    [
        ("", True),
        ("--moe-router-load-balancing-type none", True),
        ("--moe-router-pre-softmax", False),
        ("--moe-router-topk-scaling-factor 2.5", False),
        ("--moe-expert-capacity-factor 1.5", False),
    ],
)
def test_weights_of_experts_with_the_sum_one(options: str, is_carried: bool) -> None:
    assert ("norm_topk_prob" not in imported(f"{EXPERTS} --norm-topk-prob {options}")[1]) is is_carried


def test_the_widths_of_experts() -> None:
    found, lost = imported(f"{EXPERTS} --n-shared-experts 2 --router-gating-in-fp32")
    assert (found["moe-ffn-hidden-size"], found["moe-shared-expert-intermediate-size"], lost) == (48, 96, set())
    found, lost = imported(EXPERTS.replace("moe-ffn-hidden-size", "moe-intermediate-size"))
    assert (found["moe-ffn-hidden-size"], lost) == (48, set())
    assert (
        imported(EXPERTS.replace("--moe-ffn-hidden-size 48", "--n-shared-experts 1"))[0]["moe-shared-expert-intermediate-size"]
        == 192
    )


def test_weights_of_hugging_face_are_a_start_even_from_the_runs_own_directory() -> None:
    found, _ = imported(f"{DENSE} --load /x --save /x --enable-hf2mg-convert")
    assert found["load"] == "/x"
    assert "load" not in imported(f"{DENSE} --load /x --save /x")[0]
    (told,) = (entry for entry in megatron_lm.translate(f"{DENSE} --load /x --enable-hf2mg-convert".split()).lost(Effect.RESULT))
    assert told.key == "enable_hf2mg_convert"
