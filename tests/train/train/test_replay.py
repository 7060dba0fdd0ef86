"""Steps of a run computed again: the same bit for bit, and a step that differs is named."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from running import RUNS, SMALL, Result, train

from lt_shared.contracts.manifest import Dataset

STEPS = re.compile(r'("kind":"step","step":7,.*"loss":\d\.)\d')


def replay(*arguments: str) -> Result:
    """In the nursery; a replay is quick."""
    return train("replay", *arguments)


def files(directory: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in directory.rglob("*")}


def result(*arguments: str) -> tuple[int, dict[str, Any]]:
    outcome = replay(*arguments, "--json")
    assert outcome.out, outcome.err
    return outcome.code, json.loads(outcome.out)


def test_a_run_is_replayed_bit_for_bit_and_untouched(finished: Path) -> None:
    """Run `two` has skipped steps, and a line each five steps, which is the mean over those since the line before."""
    before = files(finished)
    for name, steps, checkpoint, count in (("one", "6:9", "iter_0000004", 4), ("two", "7:12", "iter_0000004", 2)):
        code, report = result(str(finished / name), "--steps", steps)
        assert (code, report["agrees"], report["tolerance"], report["compared"]) == (0, True, None, count), report
        assert report["checkpoint"].endswith(checkpoint)
        for step in report["steps"]:
            assert step["loss"]["recorded"] == step["loss"]["recomputed"]
    assert files(finished) == before


def test_from_the_beginning_and_from_a_named_checkpoint(finished: Path) -> None:
    code, report = result(str(finished / "one"), "--steps", "1:2")
    assert (code, report["checkpoint"], report["compared"]) == (0, "the beginning", 2)
    code, report = result(str(finished / "one"), "--steps", "10:12", "--from", str(finished / "one/iter_0000004"))
    assert (code, report["compared"]) == (0, 3)


def test_another_number_of_ranks_agrees_within_a_tolerance(finished: Path) -> None:
    code, report = result(str(finished / "one"), "--steps", "6:8", "--ranks", "2")
    assert (code, report["tolerance"], report["why"]) == (0, 1e-3, "another parallel layout")


def test_steps_of_transformer_engines_layers_agree_within_a_tolerance(finished: Path, tmp_path: Path) -> None:
    """An earlier version's run: its configuration names the layers and offloading, which this one does not have."""
    directory = shutil.copytree(finished / "one", tmp_path / "run")
    metrics = directory / "metrics.jsonl"
    text, count = re.subn(r'"layers":\{', '"layers":{"implementation":"te",', metrics.read_text())
    metrics.write_text(text.replace('"memory":{', '"memory":{"offloaded_layers":1,'))
    assert count
    code, report = result(str(directory), "--steps", "6:7")
    assert (code, report["tolerance"]) == (0, 1e-3)
    assert report["why"] == "trained with TransformerEngine's layers, which lt-train no longer has"


def test_the_first_step_that_differs_is_named(finished: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(finished / "one", tmp_path / "run")
    metrics = directory / "metrics.jsonl"
    changed, count = STEPS.subn(r"\g<1>9", metrics.read_text())
    assert count == 1
    metrics.write_text(changed)
    code, report = result(str(directory), "--steps", "6:9")
    assert (code, report["first_difference"], report["agrees"]) == (1, 7, False)
    assert [step["agrees"] for step in report["steps"]] == [True, False, True, True]
    outcome = replay(str(directory), "--steps", "6:9")
    assert outcome.code == 1
    assert "step 7 differs" in outcome.out
    assert "step 6 agrees" in outcome.out
    code, report = result(str(directory), "--steps", "6:9", "--tolerance", "1")
    assert (code, report["why"]) == (0, "as asked")


def test_a_damaged_weight_is_found(finished: Path, tmp_path: Path) -> None:
    """The checkpoint is another run's, as if its weights had been wrong when it was written."""
    options = (*RUNS["one"], "--seed", "7", "--exit-interval", "4", "--save", str(tmp_path / "other"), "--mock-data")
    assert train(*options).code == 75
    code, report = result(str(finished / "one"), "--steps", "6:6", "--from", str(tmp_path / "other/iter_0000004"))
    assert (code, report["first_difference"]) == (1, 6)


def test_what_cannot_be_replayed_is_refused(finished: Path, tmp_path: Path, dataset: Dataset) -> None:
    one = str(finished / "one")
    refused = {
        ("--steps", "13:14"): (66, "the last one is 12"),
        ("--steps", "9"): (2, "not A:B"),
        ("--steps", "9:8"): (2, "not A:B"),
        ("--steps", "0:8"): (2, "not A:B"),
        ("--steps", "8:8", "--from", f"{one}/iter_0000008"): (2, "is not a checkpoint before step 8"),
    }
    for arguments, (code, message) in refused.items():
        outcome = replay(one, *arguments)
        assert outcome.code == code, outcome.err
        assert message in outcome.err
    assert replay(str(tmp_path), "--steps", "1:2").code == 66
    older = shutil.copytree(finished / "one", tmp_path / "older")
    lines = (older / "metrics.jsonl").read_text().splitlines(keepends=True)
    (older / "metrics.jsonl").write_text("".join(line for line in lines if '"kind":"start"' not in line))
    outcome = replay(str(older), "--steps", "6:8")
    assert outcome.code == 66
    assert "do not say with which configuration step 6 was trained" in outcome.err


def test_dropout_is_not_compared_in_another_layout(finished: Path, tmp_path: Path) -> None:
    """Each rank draws its own."""
    directory = with_configuration(finished / "one", tmp_path, "layers", hidden_dropout=0.1)
    refused = replay(str(directory), "--steps", "6:8", "--ranks", "2")
    assert refused.code == 78
    assert "a run with dropout cannot be compared in another parallel layout" in refused.err


def test_a_replay_that_compares_nothing_is_an_error(finished: Path, tmp_path: Path) -> None:
    """As if the line about the attempt that trained step 6 were lost: by the one before the run had ended with step 4."""
    directory = with_configuration(finished / "one", tmp_path, "batches", train_iters=4)
    for more in ((), ("--json",)):
        outcome = replay(str(directory), "--steps", "6:8", *more)
        assert (outcome.code, outcome.out) == (66, ""), outcome.err
        assert "an attempt that was to end with step 4 has trained step 6" in outcome.err


def with_configuration(run: Path, place: Path, section: str, **changes: Any) -> Path:
    directory = shutil.copytree(run, place / "run")
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["kind"] == "start":
            assert changes.keys() <= record["config"][section].keys()
            record["config"][section] |= changes
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [("one", "11:20", "of which 11 to 12 have a record"), ("two", "5:10", "of which 5, 10 have a record")],
)
def test_says_which_steps_have_a_record(name: str, steps: str, said: str, finished: Path) -> None:
    outcome = replay(str(finished / name), "--steps", steps)
    assert outcome.code == 0, outcome.err
    assert f"{said}: 2 recorded steps agree" in outcome.out


def test_steps_after_a_change_of_settings(tmp_path: Path, dataset: Dataset) -> None:
    """Each attempt's steps are replayed with its own settings, from its own checkpoint, not from one before.

    The last line of the first attempt was cut off, as by a loss of power.
    """
    directory = tmp_path / "run"
    options = (*SMALL, "--seq-length", "32", "--global-batch-size", "4", "--ranks", "1", "--save", str(directory))
    options = (*options, "--train-iters", "6", "--save-interval", "2", dataset.prefix)
    assert train(*options, "--exit-interval", "4").code == 75
    for name in ("metrics.jsonl", "train.log", "attempts.jsonl"):
        os.truncate(directory / name, (directory / name).stat().st_size - 9)
    torn = (directory / "metrics.jsonl").read_text().splitlines()[-1]
    assert train(*options, "--lr", "1e-3").code == 0
    for steps in ("3:4", "5:6"):
        code, report = result(str(directory), "--steps", steps)
        assert (code, report["agrees"]) == (0, True), report
    crossing = replay(str(directory), "--steps", "4:5")
    assert crossing.code == 78
    assert "step 5 was trained with other settings" in crossing.err
    shutil.rmtree(directory / "iter_0000004")
    assert "other settings" in replay(str(directory), "--steps", "5:6").err
    # Versions before did not begin on a new line: what began then is not taken for the attempt before.
    metrics = directory / "metrics.jsonl"
    text = metrics.read_text()
    assert f"{torn}\n" in text
    metrics.write_text(text.replace(f"{torn}\n", torn))
    assert "do not say with which configuration step 5" in replay(str(directory), "--steps", "5:6").err


@pytest.mark.parametrize("way", ["torchrun"])
def test_ranks_of_a_launcher(way: str, finished: Path) -> None:
    """Two ranks of srun, of which the first reports."""
    from running import quick_command, run_tasks

    from lt_train.process.ports import free_port

    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2"}
    tasks = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    first, second = run_tasks(quick_command("replay", str(finished / "two"), "--steps", "5:10", "--json"), tasks)
    assert (first.code, second.code) == (0, 0), first.err
    assert json.loads(first.out)["compared"] == 2
    assert not second.out


def test_help_names_the_steps() -> None:
    assert "--steps A:B" in replay("--help").out
