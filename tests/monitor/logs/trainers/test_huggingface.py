"""The dicts of Hugging Face's Trainer, TRL and ms-swift, from their issues and pull requests of 2020 to 2025."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_logs import events_in as events

LOG = Path(__file__).parents[2] / "samples" / "trainers" / "huggingface.log"
GIB = 2**30


def test_dicts_that_name_their_step() -> None:
    found = [event for event in events(LOG.read_bytes()) if event["kind"] == "step" and event["step"] != 1]
    assert [(event["step"], event["loss"], event["learning_rate"]) for event in found] == [
        (10, 18.6387, 4.9113474e-05),
        (20, 14.222743, 4.822695e-05),
        (30, 12.079448, 4.734042e-05),
        (500, 7.152712148666382, 4.8358287365379566e-05),
        (1000, 6.928811420440674, 4.671657473075913e-05),
        (78, 0.21932983, 6.8e-07),
        (79, 0.21930949, 6.8e-07),
    ]
    assert found[0]["metrics"] == {"epoch": 0.05851063829787234}


def test_swift_names_step_and_total_in_one_text() -> None:
    (found,) = [event for event in events(LOG.read_bytes()) if event.get("step") == 78]
    assert (found["total_steps"], found["grad_norm"], found["memory_bytes"]) == (176, 0.57172734, round(63.16 * GIB))
    assert found["metrics"]["rewards/chosen"] == 4.8125
    assert "percentage" not in found["metrics"]


def test_what_is_printed_around_the_steps() -> None:
    path = "/root/autodl-tmp/data/Doge-160M-Instruct-SFT/checkpoint-100"
    assert [event for event in events(LOG.read_bytes()) if event["kind"] != "step"] == [
        {"kind": "start", "arguments": {"global_batch_size": 128}},
        {"kind": "start", "arguments": {"train_iters": 564}},
        {"kind": "checkpoint", "begun": True, "step": 100, "path": path, "time": "2025-02-16T18:41:31.587"},
    ]


DICT = "{'loss': %s, 'grad_norm': %s, 'learning_rate': %s, 'epoch': %s}"


@pytest.mark.parametrize(
    "line",
    [
        " 43%|████▎     | 100/230 [00:12<00:16,  8.1it/s]" + DICT % (2.5, 1.1, 5e-05, 0.43),
        DICT % (2.5, 1.1, 5e-05, 0.43) + "         43%|████▎     | 100/230 [00:12<00:16,  8.1it/s]",
        " 43%|████▎     | 99/230 [00:12<00:16,  8.1it/s]"
        + DICT % ("'2.5'", "'1.1'", "'5e-05'", "'0.43'")
        + " 43%|████▎     | 100/230 [00:12<00:16,  8.1it/s]",
    ],
)
def test_a_bar_on_the_same_line_counts_the_steps(line: str) -> None:
    assert events(line + "\n") == [
        {
            "kind": "step",
            "step": 100,
            "total_steps": 230,
            "step_seconds": 1 / 8.1,
            "loss": 2.5,
            "grad_norm": 1.1,
            "learning_rate": 5e-05,
            "metrics": {"epoch": 0.43},
        }
    ]


def test_a_bar_of_something_else_counts_no_steps() -> None:
    (found,) = events("Loading checkpoint shards: 100%|████| 2/2 [00:12<00:00,  6.1s/it]" + DICT % (2.5, 1.1, 5e-05, 0.43))
    assert (found["step"], found["step_is_counted"]) == (1, True)


def test_validation_and_the_end() -> None:
    assert events(
        "{'eval_loss': 0.34769394993782043, 'eval_runtime': 9.2465, 'epoch': 0.9, 'step': 9000}\n"
        "{'train_runtime': 8754.1218, 'train_samples_per_second': 36.554, 'train_loss': 2.159679998397827, 'step': 10000}\n"
    ) == [
        {"kind": "eval", "step": 9000, "loss": 0.34769394993782043, "split": "validation", "seconds": 9.2465},
        {"kind": "end", "reason": "completed", "step": 10000},
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 0.5, 'accuracy': 0.9}",
        '{"loss": 0.5, "step": 4}',
        "config: {'loss': 'mse', 'epoch': 3}",
        "{'loss': -9e99, 'step': 99999999999999999999}",
        "{'train_loss': 0.5, 'epoch': 3}",
    ],
)
def test_other_dicts_are_none_of_it(line: str) -> None:
    assert events(line + "\n") == []


def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (run,) = json.loads(tool("summarize", "--json", str(LOG)).stdout)["runs"]
    assert (run["step"], run["loss"], run["total_steps"]) == (79, 0.21930949, 176)


@pytest.mark.parametrize("key", ["num_input_tokens_seen", "num_tokens"])
def test_tokens_per_second_of_counted_tokens(
    key: str, tool: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Steps of 2 s with a line each 10 steps, which see 163,840 tokens: 8,192 tokens/s on 8 GPUs."""
    lines = [
        DICT.replace("}", f", '{key}': {163840.0 * step / 10}}}") % (2.5, 1.1, 5e-05, step / 100)
        + f" {step}%|█         | {step}/100 [03:20<30:00,  2.00s/it]\n"
        for step in (10, 20, 30, 40)
    ]
    (tmp_path / "run.log").write_text("".join(lines))
    options = ["--model", "llama3-8b", "--seq-length", "8192", "--gpus", "8", "--gpu", "H100"]
    (run,) = json.loads(tool("summarize", "--json", *options, str(tmp_path / "run.log")).stdout)["runs"]
    assert (run["consumed_tokens"], run["tokens_per_second"], run["tokens_per_second_per_gpu"]) == (655360, 8192, 1024)
    # 6 operations for each of 7.5e9 weights in products, and attention over half of 8,192 tokens in 32 layers of width 4,096.
    flops_per_token = 6 * (7_504_924_672 + 32 * 8192 * 4096)
    assert run["mfu"] == pytest.approx(1024 * flops_per_token / 989.4e12, rel=5e-3)
