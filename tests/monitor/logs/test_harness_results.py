"""Result files of lm-evaluation-harness: every layout that it and its users make, and what is none."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs import harness_results
from lt_shared.console import BadData, NoInput

# As version 0.4.9 writes them: the entry of a group comes among those of its tasks.
RESULTS: dict[str, Any] = {
    "results": {
        "mmlu": {"acc,none": 0.65, "acc_stderr,none": 0.0038, "alias": "mmlu", "sample_len": 14042, "name": "mmlu"},
        "mmlu_stem": {"acc,none": 0.55, "acc_stderr,none": 0.0085, "alias": " - stem"},
        "mmlu_anatomy": {"alias": "  - anatomy", "acc,none": 0.69, "acc_stderr,none": 0.039},
        "hellaswag": {"acc,none": 0.6, "acc_stderr,none": 0.004, "acc_norm,none": 0.79, "acc_norm_stderr,none": "N/A"},
        "gsm8k": {"exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": 0.01, "exact_match,flexible-extract": 0.51},
        "wikitext": {"word_perplexity,none": 9.1, "word_perplexity_stderr,none": "N/A", "bits_per_byte,none": 0.6},
        "openllm": {" ": " ", "alias": "openllm"},
    },
    "group_subtasks": {"mmlu": ["mmlu_stem"], "mmlu_stem": ["mmlu_anatomy"], "openllm": ["hellaswag", "gsm8k"], "wikitext": []},
    "date": 1713534156.1,
}  # fmt: skip
SCORES = {
    "mmlu/acc": 0.65,
    "mmlu_stem/acc": 0.55,
    "mmlu_anatomy/acc": 0.69,
    "hellaswag/acc": 0.6,
    "hellaswag/acc_norm": 0.79,
    "gsm8k/exact_match,strict-match": 0.5,
    "gsm8k/exact_match,flexible-extract": 0.51,
    "wikitext/word_perplexity": 9.1,
    "wikitext/bits_per_byte": 0.6,
}


def write(path: Path, content: Any = RESULTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_scores_and_those_that_stand_for_a_benchmark(tmp_path: Path) -> None:
    write(tmp_path / "iter_0001000/eval/__fsx__run1__iter_0001000/results_2026-01-16T07-32-24.123456.json")
    (found,) = harness_results.read(str(tmp_path))
    assert (found.step, dict(found.scores)) == (1000, SCORES)
    assert found.main == ("mmlu/acc", "hellaswag/acc_norm", "gsm8k/exact_match,strict-match", "wikitext/word_perplexity")


def test_version_0_3_has_no_filters(tmp_path: Path) -> None:
    old = {
        "results": {"piqa": {"acc": 0.7, "acc_stderr": 0.01, "acc_norm": 0.71, "acc_norm_stderr": 0.01}},
        "versions": {"piqa": 0},
    }
    write(tmp_path / "step5" / "results.json", old)
    (found,) = harness_results.read(str(tmp_path))
    assert (dict(found.scores), found.main) == ({"piqa/acc": 0.7, "piqa/acc_norm": 0.71}, ("piqa/acc_norm",))


@pytest.mark.parametrize(
    ("directory", "step"),
    [
        ("iter_0001000/eval/model", 1000),
        ("step-500", 500),
        ("step_500/a/b/c", 500),
        ("checkpoint-20/eval", 20),
        ("global_step64000", 64000),
        ("__fsx__llama__iter_0000020", 20),
        ("allenai__OLMo-2__stage1-step1000000-tokens2098B", 1000000),
        ("run2/step-7", 7),
        ("step-5/__tmp__step-6", 6),
    ],
)
def test_the_step_is_in_the_name_of_a_directory(directory: str, step: int, tmp_path: Path) -> None:
    write(tmp_path / directory / "results_x.json")
    assert [one.step for one in harness_results.read(str(tmp_path))] == [step]


def test_the_directory_itself_may_be_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "iter_0000030" / "results_x.json")
    assert [one.step for one in harness_results.read(f"{tmp_path}/iter_0000030/")] == [30]


@pytest.mark.parametrize(
    "directory", ["llama-3", "final", "misstep", "substep5", "2026-01-16", "iter_0000010.1/eval/__x__iter_0000010"]
)
def test_results_without_a_step(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a checkpoint that was written again are not of this run any more."""
    place = tmp_path / "evals"
    write(place / directory / "results_x.json")
    with pytest.raises(BadData, match="no scores of a checkpoint"):
        harness_results.read(str(place))
    assert ("no directory above it ends with an iteration" in capsys.readouterr().err) == (".1" not in directory)


def test_results_in_the_order_of_steps_and_dates(tmp_path: Path) -> None:
    for step, date, value in ((20, 2.0, 0.4), (10, 9.0, 0.1), (20, 1.0, 0.2)):
        content = {"results": {"piqa": {"acc,none": value}}, "date": date}
        write(tmp_path / f"step-{step}" / f"results_{date}.json", content)
    found = harness_results.read(str(tmp_path))
    assert [(one.step, one.scores["piqa/acc"]) for one in found] == [(10, 0.1), (20, 0.2), (20, 0.4)]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"results": []}', '{"results": {"a": 1}}', '{"results": {"a": null}}', "[" * 100_000,
     '{"results": {"a": {"acc,none": 1}}, "group_subtasks": 5}',
     '{"results": {"a": {"acc,none": 1}}, "group_subtasks": {"a": 5}}'],
)  # fmt: skip
def test_what_is_no_result_is_left_out(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "step-1" / "results_bad.json", content)
    write(tmp_path / "step-2" / "results_good.json")
    write(tmp_path / "step-3" / "samples_mmlu.jsonl", "{}")
    assert [one.step for one in harness_results.read(str(tmp_path))] == [2]
    assert "results_bad.json: left out: not a result of lm_eval" in capsys.readouterr().err


@given(
    st.dictionaries(st.text(), st.dictionaries(st.text(), st.none() | st.booleans() | st.floats() | st.integers() | st.text()))
)
def test_any_numbers_of_any_tasks(results: dict[str, Any]) -> None:
    found = {name: value for task, values in results.items() for name, value in harness_results._scores(task, values)}
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values())
    if found:
        assert harness_results._main(found) in found


def test_numbers_that_are_none(tmp_path: Path) -> None:
    values = '{"acc,none": NaN, "f1,none": Infinity, "bleu,none": true, "rouge,none": "0.5", "em,none": 1, "big,none": 1e999}'
    write(tmp_path / "step-1" / "results_x.json", f'{{"results": {{"squad": {values}}}, "date": NaN}}')
    (found,) = harness_results.read(str(tmp_path))
    assert dict(found.scores) == {"squad/em": 1.0}


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no such directory"):
        harness_results.read(str(tmp_path / "gone"))
    with pytest.raises(BadData, match="no scores"):
        harness_results.read(str(tmp_path))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "step-2" / "results_x.json")
    os.mkfifo(tmp_path / "step-2" / "results_y.json")
    assert len(harness_results.read(str(tmp_path))) == 1
