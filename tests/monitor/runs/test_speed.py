"""Speeds of logs that print them, and of logs that only hold what they are worked out from."""

import dataclasses
import math

import numpy as np
import pytest
from made_runs import steps_of

from lt_monitor.events.steps import Steps
from lt_monitor.runs import speed
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_shared.console import UsageError
from lt_shared.models import megatron_arguments, presets

LLAMA = presets.preset("llama3-8b")


def test_the_trainers_own_figures_come_first() -> None:
    steps = steps_of({"tokens_per_second": 100.0, "tflops_per_gpu": 3.0, "mfu": 0.4, "step_seconds": 1.0})
    sizes = Sizes(global_batch_size=8, seq_length=10, gpus=2, flops_per_token=1, peak_flops=1e12)
    assert speed.tokens_per_second(steps, sizes).tolist() == [100.0]
    assert speed.tflops_per_gpu(steps, sizes).tolist() == [3.0]
    assert speed.mfu(steps, sizes).tolist() == [0.4]


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"tokens_per_second_per_gpu": 50.0}, 200.0),
        ({"samples_per_second": 3.0}, 30.0),
        ({"step_seconds": 2.0}, 40.0),
        ({"step_seconds": 2.0, "global_batch_size": 16}, 80.0),
        ({"step_seconds": 0.0}, math.nan),
        ({"step_seconds": None}, math.nan),
        ({}, math.nan),
    ],
)
def test_tokens_per_second_of_what_there_is(record: dict, tokens: float) -> None:
    sizes = Sizes(global_batch_size=8, seq_length=10, gpus=4)
    assert speed.tokens_per_second(steps_of(record), sizes).tolist() == pytest.approx([tokens], nan_ok=True)


def test_a_log_without_sizes_has_no_tokens_per_second() -> None:
    steps = steps_of({"step_seconds": 2.0, "tokens_per_second_per_gpu": 5.0, "samples_per_second": 1.0})
    assert np.isnan(speed.tokens_per_second(steps, Sizes())).all()
    assert speed.tokens_per_second_per_gpu(steps, Sizes()).tolist() == [5.0]


def test_step_time_from_the_times_of_two_lines() -> None:
    times = ["2026-01-01T00:00:00", "2026-01-01T00:00:20", "2026-01-01T00:00:20", "2026-01-01T00:00:05"]
    records = [{"step": step, "time": time} for step, time in zip((10, 20, 30, 40), times, strict=True)]
    assert speed.step_seconds(Steps.from_records(records)).tolist() == pytest.approx(
        [math.nan, 2.0, math.nan, math.nan], nan_ok=True
    )


def test_flops_and_mfu_of_a_known_model_and_device() -> None:
    known = RunFacts(model=LLAMA, seq_length=8192, gpus=64, gpu="NVIDIA H100 80GB HBM3")
    steps = steps_of({"tokens_per_second_per_gpu": 9000.0})
    sizes = Sizes.of({}, known)
    tflops = 9000 * LLAMA.flops_per_token(8192) / 1e12
    assert speed.tflops_per_gpu(steps, sizes).tolist() == pytest.approx([tflops])
    assert speed.mfu(steps, sizes).tolist() == pytest.approx([tflops / 989])
    fp8 = Sizes.of({"fp8": "hybrid"}, known)
    assert speed.mfu(steps, fp8).tolist() == pytest.approx([tflops / 1979])


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-7.5b", "qwen2-7b", "mixtral-8x7b"])
def test_an_argument_dump_gives_the_operations_of_the_preset_that_it_came_from(name: str) -> None:
    model = dataclasses.replace(presets.preset(name), sliding_window=None)
    dump = {key: value if type(value) is int else str(value) for key, value in megatron_arguments.to_arguments(model).items()}
    logged = speed.architecture(dump)
    assert logged is not None
    assert logged.flops_per_token(4096) == model.flops_per_token(4096)


@pytest.mark.parametrize(
    "change", [{"num_layers": None}, {"hidden_size": "many"}, {"vocab_size": 0}, {"num_attention_heads": 7, "kv_channels": None}]
)
def test_odd_arguments_describe_no_model(change: dict) -> None:
    assert speed.architecture(megatron_arguments.to_arguments(LLAMA) | change) is None


def test_what_the_user_says_comes_before_the_arguments() -> None:
    arguments = {"seq_length": 4096, "world_size": 8}
    assert (Sizes.of(arguments, RunFacts()).seq_length, Sizes.of(arguments, RunFacts()).gpus) == (4096, 8)
    sizes = Sizes.of(arguments, RunFacts.of(None, 8192, 16, None))
    assert (sizes.seq_length, sizes.gpus) == (8192, 16)


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), ("12", 12), ("9" * 30, None), (0, None), (True, None), ("x", None), (1.5, None)]
)
def test_numbers_of_a_dump(value: object, number: int | None) -> None:
    assert speed.positive(value) == number


def test_unknown_names_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="its peak FLOP/s are not known") as raised:
        RunFacts.of(None, None, None, "H1000")
    assert "H100 PCIe" in str(raised.value.hint)
    with pytest.raises(UsageError, match="no model preset"):
        RunFacts.of("llama9", None, None, None)
