"""Composer's console logger and progress bar, as llm-foundry and its users' runs printed them."""

from typing import Any

import pytest
from trainer_logs import events, summary, values

from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import composer


def test_steps_of_many_lines() -> None:
    found = [(step["step"], step.get("total_steps"), step["loss"]) for step in events("composer", "step")]
    assert found == [(366, 48000, 10.375), (20, 20, 0.0051), (5, None, 8.4213), (1, 300000000, 12.0)]


def test_values_in_base_units() -> None:
    first, second, third, _ = events("composer", "step")
    assert (first["memory_bytes"], first["reserved_memory_bytes"]) == (44_642_000_000, 51_328_000_000)
    assert (first["metrics"]["metrics/train/LanguageCrossEntropy"], first["metrics"]["time/token"]) == (10.375, 382730240.0)
    assert (second["step_seconds"], second["samples_per_second"]) == (1 / 0.1085, 0.217)
    assert (second["tokens_per_second"], second["tokens_per_second_per_gpu"]) == (222.2194, 222.2194)
    assert second["metrics"]["metrics/load_balance_attn_o"] == 0.0001, "behind the line whose value is no number"
    assert (third["tokens_per_second"], third["tokens_per_second_per_gpu"]) == (20082.8418, 1255.1776)


def test_with_epochs_the_step_is_that_of_the_run() -> None:
    step = events("composer", "step")[2]
    assert (step["epoch"], step["step"]) == (1, 5)


def test_labels_of_srun_stand_before_each_line() -> None:
    step = events("composer", "step")[3]
    assert (step["task"], step["step"], step["metrics"]["metrics/train/LanguagePerplexity"]) == (0, 1, 162754.5)


def test_a_run_counted_in_tokens() -> None:
    log = b"[token=41943040/25000000000]:\n\t Train time/batch: 19\n\t Train loss/train/total: 7.5\n"
    (step,) = LogParser().parse(log, 0).records("log", "log")
    assert values(step) == {"step": 20, "loss": 7.5}


def test_a_run_counted_in_tokens_without_its_batch_has_no_step() -> None:
    assert LogParser().parse(b"[token=41943040/25000000000]:\n\t Train loss/train/total: 7.5\n", 0).records("log", "log") == []


def test_progress_bar() -> None:
    assert [values(step) for step in events("composer_bar", "step")] == [
        {"step": 17, "loss": 7.1243},
        {"step": 17, "loss": 7.1292, "step_seconds": 1 / 1.37},
        {"step": 30 * 1251 + 1251, "epoch": 30, "loss": 2.9341, "step_seconds": 3.66},
        {"step": 31 * 1251 + 1251, "epoch": 31, "loss": 2.9261, "step_seconds": 3.68},
    ]


def test_evaluation_has_the_last_step() -> None:
    (evaluation,) = events("composer_eval", "eval")
    assert values(evaluation) == {"step": 20, "loss": 1.8331, "split": "validation"}
    last = events("composer_eval", "step")[-1]
    assert (last["tokens_per_second"], last["reserved_memory_bytes"]) == (14793.7086, 21_995_000_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\t Eval loss/eval/total: 2.5", {"loss": 2.5, "split": "validation"}),
        ("\t Eval metrics/c4/LanguageCrossEntropy: 2.5", {"loss": 2.5, "split": "c4"}),
    ],
)
def test_evaluations(text: str, expected: dict[str, Any]) -> None:
    assert composer.evaluation(Line(text.encode(), 0)) == {"kind": "eval", **expected}


def test_summary(tool: Any) -> None:
    found = summary(tool, "composer_eval")
    assert (found["step"], found["total_steps"], found["tokens_per_second"]) == (20, 20, 14793.7086)
    bar = summary(tool, "composer_bar")
    assert (bar["step"], bar["loss"]) == (40032, 2.9261)
    several = summary(tool, "composer")
    assert (several["step"], several["loss"]) == (5, 8.4213)
