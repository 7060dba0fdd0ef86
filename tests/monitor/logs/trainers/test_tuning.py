"""Lines of mlx-lm, litgpt and slime."""

import pytest

from lt_monitor.events.records import Record
from lt_monitor.logs.log_parser import LogParser


def _records(text: str) -> list[Record]:
    records = LogParser().parse(f"{text}\n".encode(), 0).records("a.log", "a")
    return [{key: value for key, value in record.items() if key not in ("v", "run", "src")} for record in records]


def test_mlx() -> None:
    lines = (
        "Iter 1: Val loss 2.936, Val took 5.265s",
        "Iter 10: Train loss 2.5, Learning Rate 1.000e-05, It/sec 4.000, Tokens/sec 161.5, Trained Tokens 3290, Peak mem 9.5 GB",
        "Iter 100: Saved adapter weights to checkpoints/100_adapters.npz.",
    )
    assert _records("\n".join(lines)) == [
        {"kind": "eval", "step": 1, "loss": 2.936, "split": "validation"},
        {
            "kind": "step",
            "step": 10,
            "loss": 2.5,
            "learning_rate": 1e-05,
            "step_seconds": 0.25,
            "tokens_per_second": 161.5,
            "consumed_tokens": 3290,
            "memory_bytes": 9_500_000_000,
        },
        {"kind": "checkpoint", "step": 100, "path": "checkpoints/100_adapters.npz"},
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Epoch 2 | iter 64 step 4 | loss train: 10.5, val: n/a | iter time: 111.5 ms (step) remaining time: 1 day, 0:01:49",
            {"step": 4, "loss": 10.5, "epoch": 1, "metrics": {"iter": 64, "iter_ms": 111.5}},
        ),
        (
            "Epoch 1 | iter 3 step 3 | loss train: 2.5, val: 2.25 | iter time: 100.00 ms (step)",
            {"step": 3, "loss": 2.5, "epoch": 0, "step_seconds": 0.1, "metrics": {"iter": 3, "iter_ms": 100.0, "val": 2.25}},
        ),
        (
            "Ep 1 | iter 4 | step 1: loss train (curr): 1.5, val (prev val iter): None | iter time: 181.5 ms (opt.step)",
            {"step": 1, "loss": 1.5, "epoch": 0, "metrics": {"iter": 4, "iter_ms": 181.5}},
        ),
        (
            "iter 1760 | step 220: loss 1.5, iter time: 263.5 ms (optimizer.step)",
            {"step": 220, "loss": 1.5, "metrics": {"iter": 1760, "iter_ms": 263.5}},
        ),
        ("iter 80 step 40: loss 10.8259, iter time: 197.59ms", None),
    ],
)
def test_litgpt(line: str, expected: Record | None) -> None:
    assert _records(line) == ([] if expected is None else [{"kind": "step", **expected}])


def test_slime() -> None:
    line = "step 2: {'train/loss': 0.5, 'train/kl': 0.25, 'train/grad_norm': 1.5, 'train/lr-pg_0': 1e-06, 'train/step': 2}"
    assert _records(line) == [
        {"kind": "step", "step": 2, "loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-06, "metrics": {"kl": 0.25}}
    ]
    assert _records("perf 2: {'perf/step_time': 14.18, 'perf/actor_train_tflops': 3.7}") == []
