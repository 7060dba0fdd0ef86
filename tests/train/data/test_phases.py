"""A run in phases: resumed anywhere, in the middle of a phase or at its end, it has the losses of one that was not stopped."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import SMALL, losses, train

from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Dataset

WHOLE = ("--split", "1,0,0", "--eval-iters", "0")
SCHEDULE = """
phases:
  - {name: pretraining, samples: 26, weights: {web: 0.7, code: 0.3}}
  - {name: annealing, samples: 14, weights: {code: 1}}
  - {name: long, samples: 16, weights: {web: 1}, seq-length: 96, rotary-base: 50000}
"""


def steps(run: Path) -> list[dict[str, Any]]:
    return [record for line in (run / "metrics.jsonl").read_text().splitlines() if (record := json.loads(line))["kind"] == "step"]


def test_a_run_in_phases(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    """26 samples are three steps of eight, and the two that are left belong to the phase after it."""
    data = [write_dataset(tmp_path / "web", documents=60).prefix, write_dataset(tmp_path / "code", first=60, documents=30).prefix]
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text(SCHEDULE)
    run = tmp_path / "run"
    whole_steps = ("--micro-batch-size", "8", "--save-interval", "2", "--keep-last", "99")
    command = (*SMALL, "--lr", "1e-3", "--ranks", "1", *WHOLE, *whole_steps)
    command = (*command, "--data-schedule", str(schedule), "--save", str(run), *data)
    whole = train(*command)
    assert whole.code == 0, whole.err
    found = losses(run)
    records = steps(run)
    assert [record["phase"] for record in records] == ["pretraining"] * 3 + ["annealing"] * 2 + ["long"] * 2
    assert all("loss on web" not in record for record in records[3:5])
    assert all("loss on code" not in record for record in records[5:])
    assert " phase annealing begins at iteration 4: sequence length 64, weights code 1\n" in whole.err
    assert " phase long begins at iteration 6: sequence length 96, weights web 1\n" in whole.err
    phases = {step: RunRecord.read(run / f"iter_{step:07d}").phase for step in (2, 4, 5, 6, 7)}
    assert phases == {2: "pretraining", 4: "annealing", 5: "annealing", 6: "long", 7: "long"}
    assert RunRecord.read(run / "iter_0000007").architecture.rotary_base == 50000
    for kept in (2, 4, 5, 6):
        for path in run.glob("iter_*"):
            if int(path.name[5:]) > kept:
                shutil.rmtree(path)
        again = train(*command)
        assert again.code == 0, again.err
        assert losses(run) == found, kept


def test_another_launchers_ranks_end_where_a_phase_needs_other_ones(tmp_path: Path, dataset: Dataset) -> None:
    """torchrun's ranks end with the code of a run that is to be continued."""
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text("phases: [{name: a, samples: 8}, {name: b, samples: 8, seq-length: 32}]")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    command = (*SMALL, *WHOLE, "--data-schedule", str(schedule), "--save", str(tmp_path / "run"), dataset.prefix)
    for port, code in (("29713", 75), ("29714", 0)):
        done = train(*command, **rank, MASTER_PORT=port)
        assert done.code == code, done.err
    assert [record["phase"] for record in steps(tmp_path / "run")] == ["a", "b"]


@pytest.mark.parametrize("change", ["{web: 0.6, code: 0.4}", "{web: 1}"])
def test_a_phase_that_has_begun_stays_as_it_is(tmp_path: Path, write_dataset: Callable[..., Dataset], change: str) -> None:
    data = [write_dataset(tmp_path / "web", documents=60).prefix, write_dataset(tmp_path / "code", first=60, documents=30).prefix]
    schedule = tmp_path / "schedule.yaml"
    text = "phases: [{name: a, samples: 8, weights: {web: 0.5, code: 0.5}}, {name: b, samples: 8, weights: {code: 1}}]"
    schedule.write_text(text)
    command = (
        *SMALL,
        "--eval-iters",
        "0",
        "--ranks",
        "1",
        "--data-schedule",
        str(schedule),
        "--save",
        str(tmp_path / "run"),
        *data,
    )
    assert train(*command, "--exit-interval", "1").code == 75
    schedule.write_text(text.replace("{code: 1}", change))
    done = train(*command)
    assert done.code == 0, done.err
    assert "come in another order" not in done.err
    shutil.rmtree(tmp_path / "run/iter_0000002")
    schedule.write_text(text.replace("{web: 0.5, code: 0.5}", change))
    assert "phases of the data schedule that have begun were others" in train(*command).err
