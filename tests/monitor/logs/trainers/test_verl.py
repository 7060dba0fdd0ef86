"""The lines of verl: one for each step, behind Ray's label or without, and validations."""

import pytest

from lt_monitor.logs.log_parser import LogParser

# Written as verl 0.4's `concat_dict_to_str` does: `step:N`, and numbers with three decimals.
STEP = (
    b"step:86 - global_seqlen/min:339187.000 - actor/entropy_loss:0.317 - actor/pg_loss:0.012 - actor/grad_norm:0.006"
    b" - perf/mfu/actor:0.298 - perf/max_memory_allocated_gb:44.192 - actor/lr:0.000 - training/global_step:86.000"
    b" - training/epoch:2.000 - critic/rewards/mean:-0.918 - timing_s/gen:29.214 - timing_s/step:80.100\n"
)


@pytest.mark.parametrize("label", [b"", b"(TaskRunner pid=87031) ", b"\x1b[36m(TaskRunner pid=87031)\x1b[0m "])
def test_a_step(label: bytes) -> None:
    (record,) = LogParser().parse(label + STEP, 0).records("a.log", "a")
    assert {key: value for key, value in record.items() if key not in ("v", "run", "src", "metrics")} == {
        "kind": "step",
        "step": 86,
        "loss": 0.012,
        "grad_norm": 0.006,
        "mfu": 0.298,
        "memory_bytes": round(44.192 * 2**30),
        "epoch": 2,
        "step_seconds": 80.1,
    }
    assert record["metrics"] == {
        "global_seqlen/min": 339187.0,
        "actor/entropy_loss": 0.317,
        "critic/rewards/mean": -0.918,
        "timing_s/gen": 29.214,
    }


def test_supervised_training_and_numpy_numbers() -> None:
    line = b"step:12 - train/loss:np.float64(0.664) - train/lr(1e-3):0.010 - train/time(s):1.500\n"
    (record,) = LogParser().parse(line, 0).records("a.log", "a")
    assert (record["step"], record["loss"], record["step_seconds"]) == (12, 0.664, 1.5)
    assert record["learning_rate"] == pytest.approx(1e-5)


def test_a_validation_is_no_step() -> None:
    assert LogParser().parse(b"step:0 - val-core/openai/gsm8k/reward/mean@1:0.231\n", 0).items == []
    (record,) = LogParser().parse(b"step:20 - val/loss:1.250\n", 0).records("a.log", "a")
    assert (record["kind"], record["step"], record["loss"]) == ("eval", 20, 1.25)
