"""The settings of optimizer and precision: lengths in steps, samples and fractions, and what is refused with a remedy."""

from typing import Any

import pytest
from click.testing import CliRunner
from layouts import plan_of

from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_train.commands.plan_layout import command as plan_command
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.optimization import Optimization
from lt_train.process import device

SIZES = (
    *("--model", "tiny", "--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "8", "--train-iters", "1000"),
    *("--device", "cpu"),
)


def resolved(dataset: Dataset, *options: str) -> RunConfig:
    return plan_of([*SIZES, *options, dataset.prefix])


def optimization(dataset: Dataset, *options: str) -> Optimization:
    return resolved(dataset, *options).optimization


def test_lengths_in_steps_and_in_samples(dataset: Dataset) -> None:
    default = optimization(dataset)
    assert (default.lr_warmup_samples, default.lr_decay_samples, default.wsd_decay_samples) == (80, 8000, 800)
    steps = ("--lr-warmup-iters", "20", "--lr-decay-iters", "500", "--lr-wsd-decay-iters", "40")
    samples = ("--lr-warmup-samples", "160", "--lr-decay-samples", "4000", "--lr-wsd-decay-samples", "320")
    assert optimization(dataset, *steps) == optimization(dataset, *samples)
    assert optimization(dataset, *steps).lr_warmup_samples == 160
    assert optimization(dataset, "--lr-warmup-fraction", "0.25", "--lr-decay-iters", "100").lr_warmup_samples == 200


def test_steps_of_a_growing_batch(dataset: Dataset) -> None:
    """The first 24 samples come two, four and six at a time, the others eight."""
    growing = ("--rampup-batch-size", "2", "2", "24", "--lr-warmup-iters", "10")
    plan = resolved(dataset, *growing)
    assert plan.optimization.lr_warmup_samples == plan.batches.samples_after(10)
    assert plan.optimization.lr_warmup_samples < 80
    assert plan.optimization.lr_decay_samples == plan.batches.train_samples


def test_weight_decay_of_the_run(dataset: Dataset) -> None:
    def ends(*options: str) -> tuple[float, float]:
        found = optimization(dataset, *options)
        return found.start_weight_decay, found.end_weight_decay

    assert ends() == (0.1, 0.1)
    assert ends("--weight-decay", "0.2") == (0.2, 0.2)
    assert ends("--start-weight-decay", "0", "--end-weight-decay", "0.3", "--weight-decay-incr-style", "cosine") == (0.0, 0.3)


REFUSED: dict[str, tuple[tuple[str, ...], type[ToolError], str]] = {
    "two lengths": (("--lr-decay-iters", "5", "--lr-decay-samples", "40"), UsageError, "both --lr-decay-iters"),
    "two warm-ups": (("--lr-warmup-iters", "5", "--lr-warmup-fraction", "0.1"), UsageError, "--lr-warmup-fraction and another"),
    "warm-up from above": (("--lr", "1e-4", "--lr-warmup-init", "1e-3"), BadConfig, "warm-up starts at 0.001"),
    "a rate beyond float32": (("--lr", "1e38"), BadConfig, "learning rate 1e[+]38: a step of AdamW"),
    "its decay": (("--lr", "1e20", "--weight-decay", "1e20"), BadConfig, "learning rate 1e[+]20: a step of AdamW"),
    "long decay": (("--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "995"), BadConfig, "do not fit in the 8000 samples"),
    "falling weight decay": (("--end-weight-decay", "0"), BadConfig, "weight decay falls from 0.1 to 0.0"),
    "constant weight decay": (("--end-weight-decay", "1"), BadConfig, "constant weight decay from 0.1 to 1.0"),
    "both 16 bits": (("--bf16", "--fp16"), UsageError, "both --bf16 and --fp16"),
    "a recipe for nothing": (("--bf16", "--fp8-recipe", "tensorwise"), UsageError, "--fp8-recipe without --fp8-format"),
    "an output layer for nothing": (("--bf16", "--fp8-output-proj", "all"), UsageError, "--fp8-output-proj without --fp8-format"),
    "scale of bf16": (("--bf16", "--loss-scale", "8"), BadConfig, "a loss scale for weights in bfloat16"),
    "smallest scale": (("--fp16", "--min-loss-scale", "8", "--initial-loss-scale", "4"), BadConfig, "smallest loss scale 8.0"),
    "fp8 on a CPU": (("--bf16", "--fp8-format", "hybrid"), BadConfig, "fp8 needs a GPU, this run is on cpu"),
    "fp8 of fp32": (("--fp8-format", "e4m3"), BadConfig, "fp8 GEMMs of weights in float32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, dataset: Dataset) -> None:
    options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message) as caught:
        resolved(dataset, *options)
    assert caught.value.hint


FP8 = ("--bf16", "--fp8-format", "hybrid", "--device", "cuda", "--ranks", "1")
BLOCKS = ("--fp8-recipe", "blockwise", "--ffn-hidden-size", "384", "--num-query-groups", "4")
AGAIN = (
    *("--bf16", "--device", "cuda", "--ranks", "1", "--swiglu-impl", "gemm-epilogue"),
    *("--recompute-granularity", "selective", "--recompute-modules", "swiglu"),
)
REFUSED_ON_A_GPU: dict[str, tuple[tuple[int, int], tuple[str, ...], str]] = {
    "an A100": ((8, 0), FP8, "its compute capability is 8.0, 8.9 is needed"),
    "delayed": ((9, 0), (*FP8, "--fp8-recipe", "delayed"), "delayed: scales of earlier steps are TransformerEngine's"),
    "odd sizes": ((9, 0), (*FP8, "--ffn-hidden-size", "344"), "feed-forward size per rank 344 is not a multiple of 16"),
    "few tokens": ((9, 0), (*FP8, "--seq-length", "36"), "tokens in a micro batch per rank 72 is not a multiple of 16"),
    "blocks on Ada": ((8, 9), (*FP8, *BLOCKS), "this GPU has no fp8 recipe blockwise: its compute capability is 8.9"),
    "blocks on Blackwell": ((10, 0), (*FP8, *BLOCKS), "this GPU has no fp8 recipe blockwise: its compute capability is 10.0"),
    "odd blocks": (
        (9, 0),
        (*FP8, *BLOCKS, "--ffn-hidden-size", "320"),
        "feed-forward size per rank 320 is not a multiple of 128",
    ),
    "few tokens for a block": (
        (9, 0),
        (*FP8, *BLOCKS, "--seq-length", "48"),
        "tokens in a micro batch per rank 96 is not a multiple of 128",
    ),
    "a shared expert": (
        (9, 0),
        (*FP8, "--model", "tiny-deepseek-v3", "--moe-shared-expert-intermediate-size", "72"),
        "size of the shared expert per rank 72 is not a multiple of 16",
    ),
    "SwiGLU in the GEMMs": ((8, 0), AGAIN, "its compute capability is 8.0, 9.0 is needed, a Hopper GPU"),
    "exact attention": ((9, 0), ("--deterministic", "--device", "cuda", "--ranks", "1"), "no deterministic backward pass"),
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the compute capability of the GPU that lt-train believes to be there."""

    def pretend(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(device, "gpu_count", lambda: 1)
        monkeypatch.setattr(device, "compute_capability", lambda: capability)

    return pretend


@pytest.mark.parametrize("case", REFUSED_ON_A_GPU)
def test_refused_on_a_gpu(case: str, dataset: Dataset, gpu: Any) -> None:
    capability, options, message = REFUSED_ON_A_GPU[case]
    gpu(capability)
    with pytest.raises(BadConfig, match=message):
        resolved(dataset, *options)


def test_a_plan_for_other_gpus_does_not_ask_for_the_one_here(gpu: Any) -> None:
    gpu((7, 5))
    cluster = ("--gpu", "h200-141gb", "--model", "llama3.1-8b", "--seq-length", "8192")
    result = CliRunner().invoke(plan_command, [*cluster, "--bf16", "--fp8-format", "hybrid"])
    assert result.exit_code == 0, result.output


def test_fp8_on_hopper(dataset: Dataset, gpu: Any) -> None:
    gpu((9, 0))
    precision = resolved(dataset, *FP8).precision
    assert (precision.fp8_format, precision.fp8_recipe, precision.dtype) == ("hybrid", "tensorwise", "bfloat16")


def test_collectives_in_another_order_are_refused(dataset: Dataset, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu((9, 0))
    options = ("--deterministic", "--bf16", "--device", "cuda", "--ranks", "1")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert resolved(dataset, *options).precision.deterministic
    monkeypatch.setenv("NCCL_ALGO", "NVLS")
    with pytest.raises(BadConfig, match="NCCL_ALGO=NVLS may sum in another order"):
        resolved(dataset, *options)


def test_megatrons_name_of_determinism(dataset: Dataset) -> None:
    assert resolved(dataset, "--deterministic-mode").precision.deterministic


def test_no_driver_has_no_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert device.compute_capability() is None
