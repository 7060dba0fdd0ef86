"""lt-train bench: medians of the measured steps alone, nothing written, no data needed."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import environment, quick_command, train

from lt_shared.console import BadConfig, ExitCode
from lt_shared.contracts.run_log import GIB, Step
from lt_train.config.run_config import RunConfig
from lt_train.metrics.step_timer import Lap
from lt_train.train import bench
from lt_train.train.bench import Measured

TINY = ("--model", "tiny", "--layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--seq-length", "64")

SOFTWARE = {"kernels": {"attention": "flash-attn-4"}, "versions": {"torch": "2.11.0"}}


def plan_of(*options: str) -> RunConfig:
    printed = train("bench", *TINY, "--device", "cpu", "--dry-run", *options)
    assert printed.code == 0, printed.err
    fields = json.loads(printed.out)
    return RunConfig.from_json(json.dumps({name: fields[name] for name in RunConfig.__dataclass_fields__}))


@pytest.fixture(scope="module")
def plan() -> RunConfig:
    return plan_of("--warmup-steps", "2", "--steps", "3", "--bf16")


def measured(step: int, seconds: float) -> Measured:
    line = Step(step, 5, loss=math.nan if step == 4 else float(step), memory_bytes=step * GIB)
    return Measured(line, Lap(1, seconds, seconds * 0.01, seconds * 0.002))


def test_a_measurement_is_a_run_on_made_up_tokens_that_saves_nothing(plan: RunConfig) -> None:
    assert (plan.batches.train_iters, plan.reporting.log_interval) == (5, 1)
    assert (plan.data.mock, plan.data.eval_iters, plan.checkpointing.save) == (True, 0, None)
    assert plan.architecture.num_layers == 2


def test_medians_leave_out_the_warm_up(plan: RunConfig) -> None:
    steps = [measured(number, seconds) for number, seconds in enumerate((90.0, 80.0, 1.0, 4.0, 2.0), 1)]
    result = bench.summary(plan, "NVIDIA H100 80GB HBM3", steps, SOFTWARE)
    assert (result["step_seconds"], result["fastest_step_seconds"], result["slowest_step_seconds"]) == (2.0, 1.0, 4.0)
    assert result["tokens_per_second_per_gpu"] == 64 / 2.0
    assert result["tflops_per_gpu"] == pytest.approx(result["flops_per_token"] * 32 / 1e12)
    assert result["mfu"] == pytest.approx(result["tflops_per_gpu"] / 989.4, rel=1e-3)
    assert (result["steps"], result["warmup_steps"], result["memory_bytes"]) == (3, 2, 5 * GIB)
    assert result["losses"] == [1.0, 2.0, 3.0, None, 5.0]
    assert result["data_share"] == pytest.approx(0.01)
    assert result["loop_share"] == pytest.approx(0.002)
    json.dumps(result, allow_nan=False)
    text = bench.table(result | {"mfu": 0.2})
    assert "1 x NVIDIA H100 80GB HBM3: one rank" in text
    assert "tensor 2, data 4, fully sharded" in bench.table(result | {"tensor": 2, "data": 4, "fully_sharded": True})
    assert "software          torch 2.11.0\n" in text
    assert "kernels           attention flash-attn-4\n" in text
    for shown in ("2,000.0 ms, the median of 3 (1,000.0 to 4,000.0)", "20.0%", "5.00 GiB", "0.20% of a step", "bfloat16"):
        assert shown in text


def test_a_pipeline_beside_one_gpu(tmp_path: Path) -> None:
    """Two ranks, two micro batches: a bubble of a third. Two layers and an output layer, of whose work each rank has its part."""
    sizes = ("--warmup-steps", "0", "--steps", "1", "--global-batch-size", "2", "--vocab-size", "512")
    alone = bench.summary(plan_of(*sizes, "--ranks", "1"), "cpu", [measured(1, 4.0)], SOFTWARE)
    assert "pipeline_in_words" not in alone
    (tmp_path / "one.json").write_text(json.dumps(alone))
    options = (*sizes, "--pipeline-model-parallel-size", "2", "--against", str(tmp_path / "one.json"))
    result = bench.summary(plan_of(*options), "cpu", [measured(1, 4.0)], SOFTWARE)
    assert (result["speed_share"], result["bubble_share"]) == (pytest.approx(0.5), pytest.approx(1 / 3))
    # Attention, MLP and output layer of width 64, 128 and 512, and scores and values over half of 64 tokens.
    plan = plan_of(*sizes).architecture
    layer, head = 6 * (plan.mixer_weights(0) + 3 * 64 * 128) + 3 * 2 * 64 * 64, 6 * 64 * 512
    assert result["rank_work_shares"] == pytest.approx([layer / (2 * layer + head), (layer + head) / (2 * layer + head)])
    # The last rank computes both micro batches, and waits for the first one's passes of the first and the last.
    left = (2 * layer + head) / (2 * (layer + head) + layer)
    assert result["pipeline_share_left"] == pytest.approx(left)
    assert result["left_share"] == pytest.approx(0.5 / left)
    shown = bench.table(result)
    assert f"bubble 33.3% of a step (1F1B), ranks have {layer / (2 * layer + head):.1%}" in shown
    assert "50.0% of its tokens/s/GPU, " in shown
    again = plan_of(*options)
    here = bench.setting(again.architecture, again.batches, again.precision, again.parallelism, again.memory, "cpu")
    with pytest.raises(BadConfig, match="the same layout"):
        bench.check_against(again.architecture.num_layers, here, result)
    for name, wrong in (("step_seconds", "x"), ("tokens_per_second_per_gpu", 0), ("layers", None)):
        (tmp_path / "one.json").write_text(json.dumps(alone | {name: wrong}))
        printed = train("bench", *TINY, "--device", "cpu", "--dry-run", *options)
        assert (printed.code, f"{name} is {wrong!r}" in printed.err) == (ExitCode.BAD_DATA, True)


def test_rates_are_those_of_the_median_time() -> None:
    """Of an even number, the median of the rates of 1, 8, 2 and 4 seconds would be that of 2.67."""
    plan = plan_of("--warmup-steps", "0", "--steps", "4")
    result = bench.summary(plan, "cpu", [measured(1, seconds) for seconds in (1.0, 8.0, 2.0, 4.0)], SOFTWARE)
    assert (result["step_seconds"], result["tokens_per_second_per_gpu"]) == (3.0, 64 / 3)


def test_no_mfu_without_a_known_peak(plan: RunConfig) -> None:
    result = bench.summary(plan, "cpu", [measured(number, 1.0) for number in range(1, 6)], SOFTWARE)
    assert result["mfu"] is None
    assert "N/A" in bench.table(result)


def test_a_measurement_on_two_ranks(tmp_path: Path) -> None:
    arguments = ("bench", *TINY, "--device", "cpu", "--ranks", "2", "--steps", "2", "--warmup-steps", "1", "--json")
    done = subprocess.run(quick_command(*arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    assert (result["kind"], result["ranks"], result["data"], result["steps"], result["layers"]) == ("bench", 2, 2, 2, 2)
    assert result["tokens_per_second_per_gpu"] == pytest.approx(64 / result["step_seconds"])
    assert 0 < result["loop_share"] < 1
    assert "iteration" not in done.stderr and "--save" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_layer_takes_is_the_difference_of_two_measurements(tmp_path: Path) -> None:
    common = (
        "bench",
        "--hidden-size",
        "64",
        "--ffn-hidden-size",
        "128",
        "--seq-length",
        "64",
        "--device",
        "cpu",
        "--model",
        "tiny",
    )
    sizes = ("--steps", "2", "--warmup-steps", "1")
    two, five = tmp_path / "two.json", ("--num-layers", "5", "--against", str(tmp_path / "two.json"))
    two.write_text(train(*common, *sizes, "--num-layers", "2", "--json").out)
    found = json.loads(train(*common, *sizes, *five, "--json").out)
    assert found["layer_seconds"] == pytest.approx((found["step_seconds"] - json.loads(two.read_text())["step_seconds"]) / 3)
    assert "ms, forward, backward and update" in bench.table(found)
    refused = train(*common, *sizes, *five, "--micro-batch-size", "2", "--global-batch-size", "2")
    assert refused.code == 78
    assert "micro_batch_size 1, here 2; global_batch_size 1, here 2" in refused.err
    for option, size, there in (("--hidden-size", "128", "hidden_size 64"), ("--vocab-size", "512", "vocab_size 2048")):
        refused = train(*common, *sizes, *five, option, size)
        assert refused.code == 78 and f"layout: {there}, here {size}" in refused.err, refused.err
    refused = train(*common, *sizes, *five, "--recompute-activations")
    assert refused.code == 78 and "recompute None, here" in refused.err
    assert "too busy to say" in bench.table(found | {"layer_seconds": -0.1})
    refused = train(*common, *sizes, "--num-layers", "2", "--against", str(two))
    assert refused.code == 78 and "2 layers in both" in refused.err
    two.write_text("{}")
    assert train(*common, *sizes, *five).code == 65


def test_a_dataset_may_be_called_bench(tmp_path: Path) -> None:
    assert train("./bench", "--model", "tiny").code == 66
    assert train("bench", "data").code == 2
