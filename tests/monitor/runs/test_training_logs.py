"""`lt_monitor.read`: the events of `lt-monitor scrape` as dicts, and the steps as columns and as a DataFrame."""

import json
import math
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitor_command import monitor

import lt_monitor
from lt_shared import NoInput, Unavailable, UsageError

SAMPLES = Path(__file__).parents[1] / "samples"
LOGS = sorted(path for path in SAMPLES.iterdir() if path.is_file())


def line(kind: str, **fields: Any) -> str:
    return json.dumps({"v": 1, "kind": kind, **fields}) + "\n"


def step(number: int, loss: float | None, **fields: Any) -> str:
    return line("step", step=number, loss=loss, time=f"2026-01-02T03:04:{number:02}+00:00", **fields)


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """Steps 1 to 6, killed; resumed from the checkpoint of step 3, up to step 5."""
    log = tmp_path / "train.log"
    first = [step(number, 10.0 - number, consumed_samples=8 * number) for number in range(1, 7)]
    again = [step(4, None, consumed_samples=32), step(5, 1.5)]
    log.write_text("".join([*first[:3], line("checkpoint", step=3, path="/ckpt"), *first[3:], line("load", step=3), *again]))
    return log


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_events_are_those_of_scrape(log: Path) -> None:
    done = subprocess.run(monitor("scrape", log), capture_output=True, check=True)
    assert list(lt_monitor.read(log)) == [json.loads(event) for event in done.stdout.splitlines()]


def test_each_iteration_reads_the_logs_again(resumed: Path) -> None:
    logs = lt_monitor.read(str(resumed))
    assert len(list(logs)) == 10
    with resumed.open("a") as file:
        file.write(step(6, 1.25))
    assert [event["step"] for event in logs if event["kind"] == "step"][-1] == 6


def test_of_repeated_steps_the_latest_counts(resumed: Path) -> None:
    steps = lt_monitor.read(resumed).steps
    assert steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert steps["step"].dtype == np.int64
    np.testing.assert_array_equal(steps["loss"], [9.0, 8.0, 7.0, math.nan, 1.5])
    np.testing.assert_array_equal(steps["consumed_samples"], [8, 16, 24, 32, math.nan])
    assert steps["run"].tolist() == [str(resumed.parent)] * 5
    assert steps["time"][0] == np.datetime64("2026-01-02T03:04:01", "us")


def test_several_logs_follow_each_other(resumed: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.log"
    other.write_text(line("step", step=7, grad_norm=2.5))
    for given in ([resumed, other], (str(resumed), other), str(tmp_path / "*.log")):
        steps = lt_monitor.read(given).steps
        assert sorted(steps["step"].tolist()) == [1, 2, 3, 4, 5, 7]
        chosen = steps["step"] == 7
        assert steps["run"][chosen].tolist() == [str(tmp_path / "b")]
        assert steps["grad_norm"][chosen].tolist() == [2.5]
        assert np.isnan(steps["loss"][chosen]).all() and np.isnat(steps["time"][chosen]).all()
        assert np.isnan(steps["grad_norm"][~chosen]).all()


def test_jobs_that_continue_a_checkpoint_are_one_run(tmp_path: Path) -> None:
    saved = line("start", arguments={"save": "/ckpt"})
    (tmp_path / "slurm-1.out").write_text("".join([saved, *(step(number, 1.0) for number in range(1, 6))]))
    (tmp_path / "slurm-2.out").write_text("".join([saved, line("load", step=3), step(4, 2.0)]))
    steps = lt_monitor.read(tmp_path).steps
    assert steps["run"].tolist() == [str(tmp_path / "slurm-1")] * 4
    assert (steps["step"].tolist(), steps["loss"].tolist()) == ([1, 2, 3, 4], [1.0, 1.0, 1.0, 2.0])


def test_a_log_without_steps_has_columns_without_rows(tmp_path: Path) -> None:
    log = tmp_path / "other.log"
    log.write_text("nothing of a training run\n")
    logs = lt_monitor.read(log)
    assert list(logs) == []
    assert {name: (column.shape, column.dtype.kind) for name, column in logs.steps.items()} == {
        "run": ((0,), "U"),
        "step": ((0,), "i"),
        "time": ((0,), "M"),
        "loss": ((0,), "f"),
    }
    assert list(logs.to_pandas().columns) == ["run", "step", "time", "loss"]


def test_columns_cannot_be_changed_and_those_of_a_data_frame_can(resumed: Path) -> None:
    logs = lt_monitor.read(resumed)
    with pytest.raises(ValueError, match="read-only"):
        logs.steps["loss"][0] = 0.0
    frame = logs.to_pandas()
    frame.loc[0, "loss"] = 0.0
    assert frame["loss"][0] == 0.0 != logs.steps["loss"][0]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoInput, match=r"gone\.log"):
        lt_monitor.read("gone.log")
    with pytest.raises(NoInput, match="no log in this directory"):
        lt_monitor.read(tmp_path)
    with pytest.raises(UsageError, match="no log"):
        lt_monitor.read([])
    with pytest.raises(UsageError, match="an empty path"):
        lt_monitor.read("")
    with pytest.raises(NoInput, match="no such file"):
        lt_monitor.read("-")
    (tmp_path / "-").write_text(step(1, 2.0))
    assert lt_monitor.read("-").steps["loss"].tolist() == [2.0]


def test_a_log_that_goes_while_it_is_read(resumed: Path) -> None:
    logs = lt_monitor.read(resumed)
    resumed.unlink()
    with pytest.raises(NoInput):
        list(logs)


def test_threads_read_at_the_same_time(resumed: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: lt_monitor.read(resumed).steps["step"].tolist(), range(16)))
    assert found == [[1, 2, 3, 4, 5]] * 16


class StandInColumn:
    """What `to_pandas` asks of a pandas Series."""

    def __init__(self, values: np.ndarray, dtype: str):
        self.values, self.dtype = values, dtype

    @property
    def dt(self) -> "StandInColumn":
        return self

    def tz_localize(self, zone: str) -> "StandInColumn":
        return StandInColumn(self.values, f"datetime64[us, {zone}]")

    def astype(self, dtype: str) -> "StandInColumn":
        return StandInColumn(self.values, dtype)

    def tolist(self) -> list[Any]:
        return list(self.values.tolist())

    def isna(self) -> "StandInColumn":
        return StandInColumn(np.isnan(self.values), "bool")


class StandInFrame(dict[str, StandInColumn]):
    """For an environment without pandas. Where pandas is, the tests below run with it, too."""

    def __init__(self, columns: dict[str, np.ndarray]):
        super().__init__({name: StandInColumn(values, str(values.dtype)) for name, values in columns.items()})


@pytest.fixture(params=["pandas", "stand-in"])
def pandas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=StandInFrame))


@pytest.mark.usefixtures("pandas")
def test_a_data_frame_has_a_row_for_each_step_and_typed_columns(resumed: Path) -> None:
    frame = lt_monitor.read(resumed).to_pandas()
    dtypes = {name: str(frame[name].dtype) for name in frame}
    assert dtypes.pop("run") in ("object", "str", "<U" + str(len(str(resumed.parent))))
    assert dtypes == {
        "step": "int64",
        "time": "datetime64[us, UTC]",
        "loss": "float64",
        "consumed_samples": "Int64",
    }
    assert frame["step"].tolist() == [1, 2, 3, 4, 5]
    assert frame["loss"].isna().tolist() == [False, False, False, True, False]
    assert frame["consumed_samples"].isna().tolist() == [False] * 4 + [True]


@pytest.mark.usefixtures("pandas")
def test_a_metric_that_is_called_like_a_count(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line("step", step=1, metrics={"epoch": 0.25}))
    frame = lt_monitor.read(log).to_pandas()
    assert str(frame["epoch"].dtype) == "float64" and frame["epoch"].tolist() == [0.25]


@pytest.mark.usefixtures("pandas")
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_every_log_becomes_a_data_frame(log: Path) -> None:
    logs = lt_monitor.read(log)
    assert list(logs.to_pandas()) == list(logs.steps)


def test_without_pandas_the_extra_is_named(resumed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unavailable, match="to_pandas needs pandas") as raised:
        lt_monitor.read(resumed).to_pandas()
    assert raised.value.hint == "pip install 'lt-monitor[pandas]'"
