"""Which implementation computes what: what `auto` takes, what is refused, and where the choice is recorded."""

import importlib.util
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from layouts import assembled
from running import train

from lt_shared import console
from lt_shared.console import BadConfig
from lt_train.cli import command
from lt_train.commands.plan_layout import command as plan
from lt_train.config import kernels, optional_packages
from lt_train.config.kernels import Kernels
from lt_train.config.options import schema

GPU = ("--device", "cuda", "--ranks", "1")
LLAMA = (
    "--mock-data",
    "--model",
    "llama3-8b",
    "--bf16",
    "--seq-length",
    "8192",
    "--micro-batch-size",
    "1",
    "--train-iters",
    "1",
    *GPU,
)
DELTA = ("--model", "tiny-qwen3-next")
HOPPER, AMPERE, VOLTA = (9, 0), (8, 0), (7, 0)
SHARED = ("--tensor-model-parallel-size", "2", "--ranks", "2", "--sequence-parallel")
SHARDED = ("--use-torch-fsdp2", "--ranks", "2", "--global-batch-size", "8")


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node with GPUs, on which every package is installed."""
    monkeypatch.setattr("lt_train.process.device.gpu_count", lambda: 8)
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: True)
    yield


def chosen(*options: str, capability: tuple[int, int] | None = HOPPER) -> Kernels:
    return kernels.choose(assembled([*LLAMA, *options]), capability)


def test_auto_on_a_hopper_gpu() -> None:
    assert chosen() == Kernels(
        attention="flash-attn-4",
        norm="triton",
        rope="triton",
        swiglu="gemm-epilogue",
        cross_entropy="fused-linear",
        adamw="triton",
        fp8_cast=None,
        experts=None,
        collectives=None,
        recomputes_swiglu=False,
    )


@pytest.mark.parametrize(
    ("options", "part", "expected"),
    [
        # Each obstacle of flash-attn-4, and what attention is then.
        (("--attention-dropout", "0.1"), "attention", "sdpa"),
        (("--deterministic",), "attention", "sdpa"),
        (("--reset-attention-mask",), "attention", "flash-attn-4"),
        (("--reset-attention-mask", "--attention-backend", "fused"), "attention", "flex-attention"),
        (("--context-parallel-size", "2", "--ranks", "2"), "attention", "flash-attn-4"),
        (("--context-parallel-size", "2", "--ranks", "2", "--attention-backend", "fused"), "attention", "flex-attention"),
        (("--kv-channels", "256"), "attention", "sdpa"),
        (("--attention-backend", "fused"), "attention", "sdpa"),
        (("--attention-backend", "fused", "--window-size", "4096"), "attention", "flex-attention"),
        (("--attention-backend", "flash", "--window-size", "4096"), "attention", "flash-attn-4"),
        # Layers of gated delta.
        ((), "delta", None),
        (DELTA, "delta", "flash-linear-attention"),
        (("--model", "tiny-kimi-linear"), "delta", "flash-linear-attention"),
        ((*DELTA, "--kernels", "torch"), "delta", "torch"),
        ((*DELTA, "--deterministic"), "delta", "triton"),
        ((*DELTA, "--linear-key-head-dim", "512"), "delta", "triton"),
        # Norms and RoPE.
        (("--hidden-dropout", "0.1"), "norm", "torch"),
        (("--recompute-granularity", "selective", "--recompute-modules", "mlp"), "norm", "torch"),
        (("--kernels", "torch"), "norm", "torch"),
        (("--qk-layernorm",), "rope", "triton"),
        (("--qk-layernorm", "--model", "olmo2-7b"), "rope", "torch"),
        (("--rotary-percent", "0.5"), "rope", "torch"),
        # SwiGLU.
        (("--fp8-format", "hybrid"), "swiglu", "triton"),
        (("--use-torch-fsdp2",), "swiglu", "gemm-epilogue"),
        (("--tensor-model-parallel-size", "2", "--ranks", "2"), "swiglu", "gemm-epilogue"),
        (("--tensor-model-parallel-size", "4", "--ranks", "4", "--ffn-hidden-size", "14352"), "swiglu", "triton"),
        (("--ffn-hidden-size", "14340"), "swiglu", "triton"),
        (("--num-experts", "8"), "swiglu", "torch"),
        (("--kernels", "torch"), "swiglu", "torch"),
        (("--swiglu-impl", "triton"), "swiglu", "triton"),
        (("--swiglu-impl", "torch"), "swiglu", "torch"),
        # Experts.
        ((), "experts", None),
        (("--num-experts", "8"), "experts", "grouped-gemm-epilogue"),
        (("--num-experts", "8", "--kernels", "torch"), "experts", "grouped"),
        (("--num-experts", "8", "--ffn-hidden-size", "14340"), "experts", "grouped"),
        (("--num-experts", "8", "--fp8-format", "hybrid"), "experts", "grouped-fp8"),
        (("--num-experts", "8", "--fp8-format", "hybrid", "--kernels", "torch"), "experts", "grouped"),
        (("--num-experts", "16", "--fp8-format", "hybrid"), "experts", "grouped-gemm-epilogue"),
        (("--num-experts", "8", "--use-torch-fsdp2"), "experts", "grouped-gemm-epilogue"),
        (
            ("--num-experts", "8", "--tensor-model-parallel-size", "2", "--sequence-parallel", "--ranks", "2"),
            "experts",
            "sequential",
        ),
        # The loss.
        (("--z-loss-coeff", "1e-4"), "cross_entropy", "triton"),
        (("--use-torch-fsdp2",), "cross_entropy", "fused-linear"),
        (("--vocab-size", "50257"), "cross_entropy", "triton"),
        (("--hidden-size", "4100", "--num-attention-heads", "8", "--kv-channels", "128"), "cross_entropy", "triton"),
        (("--seq-length", "8190", "--micro-batch-size", "3", "--global-batch-size", "3"), "cross_entropy", "triton"),
        (("--tensor-model-parallel-size", "4", "--ranks", "4"), "cross_entropy", "fused-linear"),
        (("--tensor-model-parallel-size", "4", "--ranks", "4", "--vocab-size", "384"), "cross_entropy", "triton"),
        (("--kernels", "torch"), "cross_entropy", "torch"),
        (("--cross-entropy-impl", "triton"), "cross_entropy", "triton"),
        (("--cross-entropy-impl", "torch"), "cross_entropy", "torch"),
        # Collectives of tensor parallelism.
        (SHARED, "collectives", "symmetric-memory"),
        ((*SHARED, "--tp-comm-overlap"), "collectives", "symmetric-memory"),
        ((*SHARED, "--no-tp-comm-overlap"), "collectives", "torch"),
        (SHARED[:-1], "collectives", "torch"),
        ((*SHARED, "--deterministic"), "collectives", "torch"),
        ((*SHARED, "--kernels", "torch"), "collectives", "torch"),
        ((*SHARED, "--use-torch-fsdp2"), "collectives", "torch"),
        (SHARDED, "collectives", "symmetric-memory"),
        ((*SHARDED, "--kernels", "torch"), "collectives", "torch"),
        ((*SHARDED, "--no-tp-comm-overlap"), "collectives", "torch"),
        ((*SHARDED, "--num-distributed-optimizer-instances", "2"), "collectives", "torch"),
        (("--ranks", "2", "--use-distributed-optimizer"), "collectives", None),
        # The optimizer's step and fp8's casts.
        (("--use-torch-fsdp2",), "adamw", "triton"),
        (("--optimizer", "muon"), "adamw", "torch"),
        (("--kernels", "torch"), "adamw", "torch"),
        (("--fp8-format", "hybrid"), "fp8_cast", "triton"),
        (("--fp8-format", "hybrid", "--fp8-recipe", "rowwise"), "fp8_cast", "torch"),
        (("--fp8-format", "e4m3", "--fp8-recipe", "blockwise"), "fp8_cast", "triton"),
        (("--fp8-format", "hybrid", "--fp8-output-proj", "gradients"), "cross_entropy", "fp8-linear"),
        (("--fp8-format", "hybrid", "--fp8-output-proj", "all", "--vocab-size", "50257"), "cross_entropy", "fp8-linear"),
        (("--fp8-format", "e4m3", "--fp8-recipe", "blockwise", "--kernels", "torch"), "fp8_cast", "torch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_is_chosen_with_an_option(options: tuple[str, ...], part: str, expected: str) -> None:
    assert getattr(chosen(*options), part) == expected


@pytest.mark.parametrize("word", ["auto", "torch", "local", "te", "transformer_engine"])
def test_the_kernels_are_the_same_with_every_word_for_the_layers(word: str) -> None:
    for options in ((), (*SHARED, "--tp-comm-overlap"), ("--fp8-format", "hybrid"), ("--num-experts", "8"), SELECTIVE):
        assert chosen(*options, "--transformer-impl", word) == chosen(*options)


@pytest.mark.parametrize(
    ("capability", "attention", "swiglu", "cross_entropy"),
    [
        (AMPERE, "flash-attn-4", "triton", "triton"),
        (VOLTA, "sdpa", "triton", "triton"),
        ((10, 0), "flash-attn-4", "triton", "triton"),
        (None, "flash-attn-4", "gemm-epilogue", "fused-linear"),
    ],
)
def test_auto_on_another_gpu(capability: tuple[int, int] | None, attention: str, swiglu: str, cross_entropy: str) -> None:
    found = chosen(capability=capability)
    assert (found.attention, found.swiglu, found.cross_entropy) == (attention, swiglu, cross_entropy)


@pytest.mark.parametrize(
    ("missing", "part", "expected"),
    [
        ("quack", "swiglu", "triton"),
        ("quack", "cross_entropy", "triton"),
        ("flash_attn.cute", "attention", "sdpa"),
        ("cutlass", "attention", "sdpa"),
        ("cutlass", "swiglu", "triton"),
    ],
)
def test_auto_takes_what_is_installed(missing: str, part: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: module != missing)
    assert getattr(chosen(), part) == expected


@pytest.mark.parametrize("dtype", [("--fp16",), ()], ids=["fp16", "fp32"])
def test_auto_without_bf16(dtype: tuple[str, ...]) -> None:
    without = [option for option in LLAMA if option != "--bf16"]
    found = kernels.choose(assembled([*without, *dtype]), HOPPER)
    assert (found.swiglu, found.cross_entropy, found.adamw) == ("triton", "triton", "torch")
    assert found.attention == ("flash-attn-4" if dtype else "sdpa")


def test_gpt_has_no_swiglu_and_no_rope() -> None:
    options = ("--mock-data", "--model", "gpt3-1.7b", "--bf16", "--seq-length", "2048", "--train-iters", "1", *GPU)
    found = kernels.choose(assembled(options), HOPPER)
    # A vocabulary of 50257 is no multiple of 128.
    assert (found.norm, found.rope, found.swiglu, found.cross_entropy) == ("torch", "torch", "torch", "triton")


def test_gpt_oss_has_sinks_biases_and_another_swiglu() -> None:
    options = ("--mock-data", "--model", "gpt-oss-20b", "--bf16", "--seq-length", "8192", "--train-iters", "1", *GPU)
    found = kernels.choose(assembled(options), HOPPER)
    assert (found.attention, found.norm, found.rope, found.swiglu) == ("flash-attn-4", "triton", "triton", "torch")
    documents, shared = ("--reset-attention-mask",), ("--context-parallel-size", "2", "--ranks", "2")
    assert kernels.choose(assembled([*options, *documents, *shared]), HOPPER).attention == "flash-attn-4"
    assert kernels.choose(assembled([*options, "--attention-backend", "fused"]), HOPPER).attention == "flex-attention"


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        # One norm feeds attention and MLP, so no kernel adds between them; it is LayerNorm, as OLMo 1's are.
        ("command-r7b", (), ("torch", "triton", "gemm-epilogue")),
        ("olmo-1b", (), ("torch", "triton", "gemm-epilogue")),
        # The kernel rotates, and the norms follow.
        ("hunyuan-7b", (), ("triton", "triton", "gemm-epilogue")),
        ("hunyuan-7b", ("--rope-scaling", '{"rope_type": "yarn", "factor": 4.0}'), ("triton", "torch", "gemm-epilogue")),
        # The temperature multiplies what the kernel puts out.
        ("ministral3-8b", (), ("triton", "triton", "gemm-epilogue")),
        ("apertus-8b", (), ("triton", "triton", "torch")),
    ],
)
def test_layers_that_kernels_do_not_compute(model: str, options: tuple[str, ...], expected: tuple[str, ...]) -> None:
    command = ("--mock-data", "--model", model, "--bf16", "--seq-length", "2048", "--train-iters", "1", *GPU)
    found = kernels.choose(assembled([*command, *options]), HOPPER)
    assert (found.norm, found.rope, found.swiglu) == expected


@pytest.mark.parametrize(
    ("model", "capability", "expected"),
    [
        ("deepseek-v3", HOPPER, "flash-attn-4"),
        ("deepseek-v2-lite", HOPPER, "flash-attn-4"),
        ("deepseek-v3", AMPERE, "sdpa"),
        ("tiny-deepseek-v3", HOPPER, "sdpa"),
    ],
)
def test_latent_attention_with_deepseeks_heads_is_flash_attentions(
    model: str, capability: tuple[int, int], expected: str
) -> None:
    options = ("--mock-data", "--model", model, "--bf16", "--seq-length", "128", "--train-iters", "1", *GPU)
    assert kernels.choose(assembled(options), capability).attention == expected


EPILOGUE, FUSED_LINEAR, FLASH = (
    ("--swiglu-impl", "gemm-epilogue"),
    ("--cross-entropy-impl", "fused-linear"),
    ("--attention-backend", "flash"),
)
REFUSED: dict[tuple[str, ...], str] = {
    (*EPILOGUE, "--kernels", "torch"): "--swiglu-impl gemm-epilogue does not support --kernels torch",
    (*EPILOGUE, "--num-experts", "8"): "experts",
    (*EPILOGUE, "--fp8-format", "hybrid"): "fp8",
    (*EPILOGUE, "--ffn-hidden-size", "14340"): "widths of a rank that are no multiples of 8",
    ("--swiglu-impl", "triton", "--kernels", "torch"): "--swiglu-impl triton does not support --kernels torch",
    ("--swiglu-impl", "triton", "--num-experts", "8"): "experts",
    (*FUSED_LINEAR, "--kernels", "torch"): "--cross-entropy-impl fused-linear does not support --kernels torch",
    (*FUSED_LINEAR, "--z-loss-coeff", "1e-4"): "--z-loss-coeff, which needs the logits",
    (*FUSED_LINEAR, "--vocab-size", "50257"): "a vocabulary of 50257, which is no multiple of 128",
    (*FUSED_LINEAR, "--vocab-size", "128", "--tensor-model-parallel-size", "2", "--ranks", "2"): "nothing but padding",
    (*FLASH, "--attention-dropout", "0.1"): "flash does not support --attention-dropout",
    (*FLASH, "--deterministic"): "--deterministic",
    (*FLASH, "--kv-channels", "256"): "heads of 256, only of 64, 96, 128",
    (*FLASH, "--model", "tiny-deepseek-v3"): "latent attention with heads of 48 and 32, only of 192 and 128",
}


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_an_explicit_choice_that_cannot_be_met_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(BadConfig, match=REFUSED[options]) as refusal:
        chosen(*options)
    assert "auto takes" in str(refusal.value.hint)
    assert refusal.value.exit_code == 78


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [(("--deterministic",), "--deterministic"), (("--kernels", "torch"), "--kernels torch"), (("--use-torch-fsdp2",), "fsdp2")],
)
def test_overlap_that_was_asked_for_is_refused(options: tuple[str, ...], obstacle: str) -> None:
    with pytest.raises(BadConfig, match=f"--tp-comm-overlap does not support .*{obstacle}"):
        chosen(*SHARED, "--tp-comm-overlap", *options)


@pytest.mark.parametrize("wish", [EPILOGUE, FUSED_LINEAR], ids=" ".join)
def test_a_gpu_that_is_not_hopper_is_refused(wish: tuple[str, ...]) -> None:
    with pytest.raises(BadConfig, match=r"its compute capability is 8\.0, 9\.0 is needed, a Hopper GPU"):
        chosen(*wish, capability=AMPERE)


def test_a_refusal_names_what_auto_takes() -> None:
    with pytest.raises(BadConfig) as refusal:
        chosen(*FUSED_LINEAR, "--z-loss-coeff", "1e-4")
    assert refusal.value.hint == "drop it: auto takes triton here"


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (FUSED_LINEAR, ["--device cpu"]),
        (("--loss-in", "products", "--fp16", "--z-loss-coeff", "1e-4"), ["--device cpu"]),
        (("--cross-entropy-impl", "triton"), ["--device cpu"]),
    ],
    ids=str,
)
def test_a_run_is_refused_before_it_starts(options: tuple[str, ...], reasons: list[str]) -> None:
    result = train("--mock-data", "--model", "tiny", "--device", "cpu", "--ranks", "1", "--train-iters", "1", *options)
    assert result.code == 78
    assert all(reason in result.err for reason in reasons)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        (("--gpu", "a100-80gb", *FUSED_LINEAR), "8.0, 9.0 is needed"),
        (("--gpu", "b200-180gb", *EPILOGUE), "10.0, 9.0 is needed"),
        (("--gpu", "h200-141gb", *FUSED_LINEAR, "--vocab-size", "50257"), "a vocabulary of 50257"),
    ],
    ids=str,
)
def test_a_plan_for_other_gpus_is_refused(options: tuple[str, ...], obstacle: str) -> None:
    result = CliRunner().invoke(plan, ["--model", "llama3-8b", "--bf16", "--seq-length", "8192", *options])
    assert obstacle in str(result.exception)


SELECTIVE = ("--recompute-granularity", "selective", "--recompute-modules", "swiglu,swiglu")
FP8 = ("--fp8-format", "hybrid")
HERE = ("--gpu", "h200-141gb")


def planned(*options: str) -> tuple[int, str]:
    """Of a plan that recomputes SwiGLU."""
    words = ["--model", "llama3-8b", "--bf16", "--seq-length", "8192", *HERE, *SELECTIVE, *options]
    result = CliRunner().invoke(plan, words)
    return result.exit_code, result.output + str(result.exception)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ((*FP8, "--fp8-recipe", "rowwise"), "--fp8-recipe rowwise"),
        ((*FP8, "--kernels", "torch"), "--kernels torch"),
        ((*FP8, "--model", "mixtral-8x7b"), "experts"),
        (("--model", "mixtral-8x7b"), "experts"),
        (("--model", "gpt3-1.7b", "--seq-length", "2048"), "a model without SwiGLU"),
        (("--ffn-hidden-size", "14340"), "multiples of 8"),
        (("--swiglu-impl", "triton"), "--swiglu-impl triton"),
        (("--swiglu-in", "kernel"), "--swiglu-impl triton"),
        ((*FP8, "--swiglu-impl", "torch"), "--swiglu-impl torch"),
        (("--gpu", "a100-80gb"), "a Hopper GPU"),
        (("--gpu", "b200-180gb"), "its compute capability is 10.0"),
    ],
    ids=str,
)
def test_swiglu_cannot_be_recomputed(options: tuple[str, ...], obstacle: str) -> None:
    code, said = planned(*options)
    assert code
    assert obstacle in said


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--tensor-model-parallel-size", "2"),
        FP8,
        ("--fp8-format", "e4m3", "--tensor-model-parallel-size", "2"),
        (*FP8, "--gpu", "b200-180gb"),
        (*FP8, "--fp8-recipe", "blockwise"),
    ],
    ids=str,
)
def test_swiglu_can_be_recomputed(options: tuple[str, ...]) -> None:
    code, said = planned(*options)
    assert code == 0, said


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        (("--cross-entropy-impl", "triton"), "--cross-entropy-impl triton"),
        (("--z-loss-coeff", "1e-4"), "--z-loss-coeff"),
        (("--kernels", "torch"), "--kernels torch"),
        (("--model", "gemma2-9b"), "scaled or capped logits"),
    ],
    ids=str,
)
def test_an_output_layer_in_fp8_is_refused(options: tuple[str, ...], obstacle: str) -> None:
    with pytest.raises(BadConfig, match=f"--fp8-output-proj does not support {obstacle}"):
        chosen(*FP8, "--fp8-output-proj", "all", *options)


def test_swiglu_is_recomputed_with_the_mlp_or_alone() -> None:
    assert chosen(*SELECTIVE).recomputes_swiglu
    assert not chosen("--recompute-granularity", "selective", "--recompute-modules", "swiglu,mlp").recomputes_swiglu


@pytest.mark.parametrize(
    ("options", "module", "problem", "hint"),
    [
        (EPILOGUE, "quack", "quack is not installed", "drop --swiglu-impl"),
        (SELECTIVE, "quack", "quack is not installed", "drop --recompute-modules swiglu"),
        (FUSED_LINEAR, "quack", "quack is not installed", "drop --cross-entropy-impl"),
        ((*EPILOGUE, *FUSED_LINEAR), "quack", "quack is not installed", "drop --swiglu-impl and --cross-entropy-impl"),
        (FLASH, "flash_attn.cute", "flash-attn-4 is not installed", "use --attention-backend fused"),
        (FLASH, "cutlass", "flash-attn-4 is not installed: there is no module cutlass, which it imports", "fused"),
        (EPILOGUE, "cutlass", "quack is not installed: there is no module cutlass, which it imports", "drop --swiglu-impl"),
    ],
    ids=str,
)
def test_what_is_chosen_has_to_be_installed(
    options: tuple[str, ...], module: str, problem: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = assembled([*LLAMA, *options])
    monkeypatch.setattr(optional_packages, "is_installed", lambda name: name != module)
    (found,) = kernels.missing_packages(asked.layers, asked.memory, asked.precision)
    assert str(found) == problem
    assert str(found.hint).endswith(hint)


def test_a_run_without_kernels_for_gated_delta_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run, kimi = assembled([*LLAMA, *DELTA]), assembled([*LLAMA, "--model", "tiny-kimi-linear"])
    assert kernels.delta_kernel_hint(run, HOPPER) == ""
    # All packages are installed, tilelang among them.
    monkeypatch.setattr(optional_packages, "versions", lambda: {"triton": "3.6.0+git1"})
    assert kernels.choose(run, HOPPER).delta == "flash-linear-attention"
    monkeypatch.setattr(optional_packages, "is_installed", lambda name: name != "tilelang")
    assert [kernels.choose(model, gpu).delta for model, gpu in ((run, HOPPER), (run, AMPERE), (kimi, HOPPER))] == [
        "flash-linear-attention-kimi",
        "flash-linear-attention",
        "flash-linear-attention",
    ]
    assert kernels.delta_kernel_hint(run, HOPPER).endswith("on Hopper GPUs: install Triton 3.7.1 or tilelang")
    monkeypatch.setattr(optional_packages, "versions", lambda: {"triton": "3.7.1"})
    assert kernels.choose(run, HOPPER).delta == "flash-linear-attention"
    monkeypatch.setattr(optional_packages, "is_installed", lambda name: name != "fla")
    assert kernels.choose(run, HOPPER).delta == "triton"
    assert kernels.delta_kernel_hint(run, HOPPER) == "pip install fla-core has faster kernels for gated delta"
    in_float32 = [word for word in (*LLAMA, *DELTA) if word != "--bf16"]
    assert (
        kernels.delta_kernel_hint(assembled([*LLAMA]), HOPPER) == kernels.delta_kernel_hint(assembled(in_float32), HOPPER) == ""
    )


def test_installed_modules_are_found_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(name))
    optional_packages.is_installed.cache_clear()
    assert optional_packages.is_installed("torch")
    assert not optional_packages.is_installed("no_such_package.inner")


EARLIER = {
    ("--loss-in", "products"): ("cross_entropy", "fused-linear"),
    ("--loss-in", "kernel"): ("cross_entropy", "triton"),
    ("--loss-in", "auto"): ("cross_entropy", "fused-linear"),
    ("--loss-in", "kernel", "--kernels", "torch"): ("cross_entropy", "torch"),
    ("--swiglu-in", "products"): ("swiglu", "gemm-epilogue"),
    ("--swiglu-in", "kernel"): ("swiglu", "triton"),
    ("--swiglu-in", "kernel", "--num-experts", "8"): ("swiglu", "torch"),
}


@pytest.mark.parametrize("options", EARLIER, ids=" ".join)
def test_earlier_spellings_are_understood(options: tuple[str, ...]) -> None:
    part, expected = EARLIER[options]
    assert getattr(chosen(*options), part) == expected


def test_earlier_spellings_in_a_config_file_and_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('loss-in = "products"\n')
    words = ("--mock-data", "--model", "tiny", "--device", "cpu", "--ranks", "1", "--train-iters", "1", "--dry-run")
    for arguments, variables in (((*words, "--config", str(config)), {}), (words, {"LT_TRAIN_LOSS_IN": "products"})):
        result = train(*arguments, **variables)
        assert (result.code, "--cross-entropy-impl fused-linear" in result.err) == (78, True), result.err


def test_earlier_spellings_are_not_in_the_help() -> None:
    page = CliRunner().invoke(command, ["--help"]).output
    assert "--cross-entropy-impl" in page
    assert "--loss-in" not in page and "--swiglu-in" not in page


IDLE_OR_REPEATING = [
    ("--exit-signal-handler",),
    ("--recompute-activations",),
    ("--data-path", "data/web"),
    ("--log-throughput",),
    ("--use-mcore-models",),
]


@pytest.mark.parametrize("words", IDLE_OR_REPEATING, ids=" ".join)
def test_options_that_do_nothing_or_repeat_another_are_accepted_but_not_shown(words: tuple[str, ...]) -> None:
    context = schema().make_context("lt-train", list(words), auto_envvar_prefix="LT_TRAIN")
    assert context.params[words[0].strip("-").replace("-", "_")]
    page = CliRunner().invoke(command, ["--help"]).output
    assert not re.search(rf"^  {words[0]}\b", page, re.MULTILINE)


def test_the_help_has_one_table_of_implementations() -> None:
    sections = console.option_sections(click.Context(schema()))
    shown = [option for option in sections["Implementations"] if not option.hidden]
    assert [option.opts[0] for option in shown] == ["--kernels", "--attention-backend", "--swiglu-impl", "--cross-entropy-impl"]
    for option in shown:
        assert re.search(r"Set \w[\w-]*\s+if ", option.help or ""), option.opts[0]


def test_the_new_spelling_overrides_the_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Which may stand in a file or in the environment of a whole cluster."""
    assert chosen("--loss-in", "products", "--cross-entropy-impl", "triton").cross_entropy == "triton"
    assert "--loss-in products is ignored" in capsys.readouterr().err


def test_the_choice_stands_in_log_checkpoint_and_dry_run(tmp_path: Path) -> None:
    words = ("--mock-data", "--model", "tiny", "--seq-length", "32", "--device", "cpu", "--ranks", "1", "--train-iters", "1")
    save = tmp_path / "run"
    result = train(*words, "--kernels", "torch", "--eval-iters", "0", "--save", str(save))
    assert result.code == 0, result.err
    expected = dict.fromkeys(("norm", "rope", "swiglu", "cross_entropy", "adamw"), "torch") | {"attention": "sdpa"}
    record = json.loads((save / "iter_0000001/run.json").read_text())
    assert record["kernels"] == expected
    assert record["versions"]["torch"] == metadata.version("torch")
    log = (save / "train.log").read_text()
    assert "  kernels: attention sdpa, norm torch," in log
    assert f"megatron-core {metadata.version('megatron-core')}" in log
    shown = train(*words, "--dry-run")
    assert json.loads(shown.out)["kernels"] == expected


def test_the_choice_stands_in_a_measurement() -> None:
    words = ("bench", "--model", "tiny", "--seq-length", "32", "--steps", "1", "--warmup-steps", "0", "--device", "cpu")
    result = train(*words, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert found["kernels"]["cross_entropy"] == "torch"
    assert {"torch", "megatron-core"} <= set(found["versions"])
    assert "attention sdpa" in train(*words).out


def test_the_manual_lists_the_implementations_and_the_packages() -> None:
    manual = (Path(__file__).parents[3] / "docs/guides/models.md").read_text()
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| (`[a-z-]+`(?:, `[a-z-]+`)+) \|", manual, re.MULTILINE))
    expected = {option: ", ".join(f"`{name}`" for name in names) for option, names in kernels.IMPLEMENTATIONS.items()}
    assert listed == expected
    text = " ".join(manual.split())
    assert f"the versions of {', '.join(optional_packages.DISTRIBUTIONS[:-1])} and {optional_packages.DISTRIBUTIONS[-1]}:" in text
