"""Lines of trainers for fine-tuning and reinforcement learning."""

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


def test_prime_rl() -> None:
    """From PrimeIntellect-ai/prime-rl#999."""
    lines = (
        "02:40:52 SUCCESS Step 0 | Time: 5.13s | Loss: 12.2500 | Grad. Norm: 28.2032 | LR: 1.00e-06 | Throughput: 0 tokens/s"
        " | MFU: 0.0% | Peak Mem.: 5.1/23.7 GiB (21.4%) | Max Vio: 1.0000",
        "02:40:53 SUCCESS Step 1 | Time: 0.60s | Loss: 12.3125 | Grad. Norm: 28.4812 | LR: 1.00e-06 | Throughput: 3324 tokens/s"
        " | MFU: 1.0% | Peak Mem.: 5.2/23.7 GiB (22.1%) | Max Vio: 0.9891",
        "02:41:53 SUCCESS Step 2 | Time: 60.00s | Reward: 0.5000 | Throughput: 3324.0 tokens/s | Seq. Length: 12.0 tokens/sample",
        "02:40:54 SUCCESS SFT trainer finished!",
    )
    first, second, end = _records("\n".join(lines))
    assert (first["step"], first["step_seconds"], first["tokens_per_second"]) == (0, 5.13, 0)
    assert second == {
        "kind": "step",
        "step": 1,
        "step_seconds": 0.6,
        "loss": 12.3125,
        "grad_norm": 28.4812,
        "learning_rate": 1e-06,
        "tokens_per_second": 3324.0,
        "mfu": 0.01,
        "memory_bytes": round(5.2 * 2**30),
        "metrics": {"max vio": 0.9891},
    }
    assert (end["kind"], end["reason"]) == ("end", "completed")


def test_prime_rl_by_columns() -> None:
    line = (
        "02:40:53 SUCCESS Step {0} | Time: 0.{0:02d}s | Loss: 12.{0:04d} | Entropy: 0.{0:04d} | Grad. Norm: 28.{0:04d}"
        " | LR: 1.{0:02d}e-06 | Throughput: 33{0} tokens/s | MFU: 1.0% | Peak Mem.: 5.2/23.7 GiB (22.{1}%)"
    )
    lines = [line.format(number, number % 10) for number in range(10, 90)]
    assert _records("\n".join(lines)) == [record for line in lines for record in _records(line)]


def test_arctic_training() -> None:
    lines = (
        "iter:   20/1000   2% | loss: 1.2345 | iter time: 5.1 s | iter tflops: 123.4 | lr: 1.000E-05 | seqlen total: 16.5K"
        " | step time: 4.9 s | step tflops: 130.1 | epoch: 0",
    )
    assert _records("\n".join(lines)) == [
        {
            "kind": "step",
            "step": 20,
            "total_steps": 1000,
            "loss": 1.2345,
            "step_seconds": 5.1,
            "tflops_per_gpu": 123.4,
            "learning_rate": 1e-05,
            "metrics": {"step time": 4.9, "step tflops": 130.1},
            "epoch": 0,
        },
    ]


AREAL = """\
20260301-12:00:00.123 StatsLogger INFO: Epoch 2/3 Step 12/100 Train step 112/300 done.
20260301-12:00:00.124 StatsLogger INFO: Stats (1/1):
20260301-12:00:00.124 StatsLogger INFO:
╒═════════════════════════════════╤═════════════╤═════════════════════╤════════════╕
│ ppo_actor/update/actor_loss/avg │ -2.5000e-04 │ timeperf/train_step │ 4.2500e+00 │
├─────────────────────────────────┼─────────────┼─────────────────────┼────────────┤
│ ppo_actor/update/grad_norm      │  2.5000e+00 │ ppo_actor/update/lr │ 1.7000e-05 │
╘═════════════════════════════════╧═════════════╧═════════════════════╧════════════╛
20260301-12:00:09.123 StatsLogger INFO: Epoch 2/3 Step 13/100 Train step 113/300 done.
"""


def test_areal() -> None:
    statistics = {"loss": -2.5e-04, "grad_norm": 2.5, "learning_rate": 1.7e-05, "metrics": {"timeperf/train_step": 4.25}}
    step = {"kind": "step", "total_steps": 300, "epoch": 1}
    assert _records(AREAL) == [{**step, "step": 112, **statistics}, {**step, "step": 113}]
    assert _records(AREAL.replace("ppo_actor/update/actor_loss", "sft/loss"))[0]["loss"] == -2.5e-04


def test_openrlhf() -> None:
    line = (
        "(PPOTrainer pid=77) INFO 03-01 12:00:00 ppo_trainer.py:547] ✨ Global step 12: {'policy_loss': 0.0125,"
        " 'actor_lr': 5e-07, 'kl': 0.5, 'actor_grad_norm': 0.25, 'timing/generation': 30.5, 'timing/step_total': 45.5}"
    )
    assert _records(line) == [
        {
            "kind": "step",
            "step": 12,
            "loss": 0.0125,
            "learning_rate": 5e-07,
            "grad_norm": 0.25,
            "step_seconds": 45.5,
            "metrics": {"kl": 0.5, "timing/generation": 30.5},
        }
    ]
    bar = "Train step of epoch 1:  40%|████      | 40/100 [00:30<00:45,  1.25it/s, gpt_loss=2.31, lr=9.1e-6, loss_mean=2.5]"
    assert _records(f"Train epoch:  33%|███       | 1/3 [01:00<02:00, 60.00s/it]\n{bar}") == [
        {
            "kind": "step",
            "step": 140,
            "epoch": 1,
            "loss": 2.31,
            "learning_rate": 9.1e-06,
            "metrics": {"loss_mean": 2.5},
            "step_seconds": 0.8,
        }
    ]
    assert _records("Train step of epoch 1:   0%|          | 0/100 [00:00<?, ?it/s]") == []


NEMO_RL = """\
========================= Step 1/3 =========================
▶ Generating responses for batch of size 64...
Processed prompts: 100%|██████████| 64/64 [00:12<00:00,  5.10it/s]
📊 Training Results:
  • Loss: 0.6931
  • Avg Reward: 0.2500
⏱️  Timing:
  • Total step time: 12.41s
  • policy_training: 8.10s (65.3%)
========================= Step 2/3 =========================
▶ Generating responses for batch of size 64...
"""


def test_nemo_rl() -> None:
    results = {"loss": 0.6931, "step_seconds": 12.41, "metrics": {"Avg Reward": 0.25}}
    assert _records(NEMO_RL) == [{"kind": "step", "step": 1, "total_steps": 3, **results}]
    parser, offset, joined = LogParser(), 0, {}
    for line in NEMO_RL.encode().splitlines(keepends=True):
        for record in parser.parse(line, offset).records("a.log", "a"):
            assert record["step"] == 1
            joined |= record
        parser, offset = LogParser(parser.to_record()), offset + len(line)
    assert {field: joined[field] for field in results} == results
