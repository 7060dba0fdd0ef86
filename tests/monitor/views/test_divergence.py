"""Two runs agree when their numbers do, and the step where they part is named."""

import json
import subprocess
from pathlib import Path

import pytest
from monitor_command import monitor

from lt_monitor.views import divergence
from lt_shared.console import BadData
from lt_shared.contracts import run_log


def log(path: Path, losses: dict[int, float | None], evaluations: dict[int, float] | None = None) -> str:
    steps = [run_log.Step(step, 1000, loss=loss, grad_norm=1.0, nan_steps=0).format() for step, loss in losses.items()]
    steps += [run_log.Evaluation(step, loss).format() for step, loss in (evaluations or {}).items()]
    path.write_text("\n".join(steps) + "\n")
    return str(path)


SAME = {step: 10.0 / step for step in range(1, 100)}


def test_the_step_where_runs_part_is_named(tmp_path: Path) -> None:
    a = log(tmp_path / "a.log", SAME)
    b = log(tmp_path / "b.log", {step: loss * (1.0 if step < 40 else 1.02 if step < 50 else 1.05) for step, loss in SAME.items()})
    (found,) = divergence.compare(a, b, ["loss"], 0.01).differences
    assert (found.steps, found.parting_steps, found.first_step) == (99, 60, 40)
    assert found.largest == pytest.approx(0.05 / 1.05, rel=1e-4)
    assert (found.a, found.b) == (pytest.approx(10 / 40), pytest.approx(10.2 / 40))
    comparison = divergence.compare(a, b, ["loss", "grad_norm"], 0.1)
    assert comparison.agree
    assert comparison.differences[0].first_step is None


def test_without_tolerance_the_digits_must_be_the_same(tmp_path: Path) -> None:
    a, b = log(tmp_path / "a.log", SAME), log(tmp_path / "b.log", {**SAME, 7: SAME[7] * (1 + 2e-6)})
    assert divergence.compare(a, a, ["loss"], 0.0).agree
    assert divergence.compare(a, b, ["loss"], 0.0).differences[0].first_step == 7


def test_only_steps_in_both_logs_are_compared(tmp_path: Path) -> None:
    a, b = log(tmp_path / "a.log", SAME), log(tmp_path / "b.log", {step: SAME[step] for step in range(10, 95, 5)})
    assert divergence.compare(a, b, ["loss"], 0.0).differences[0].steps == 17
    with pytest.raises(BadData, match="no step has loss in both"):
        divergence.compare(a, log(tmp_path / "c.log", {500: 1.0}), ["loss"], 0.0)
    with pytest.raises(BadData, match="no step has colour in both"):
        divergence.compare(a, b, ["colour"], 0.0)


def test_a_loss_that_is_no_number_parts_runs_only_when_one_has_it(tmp_path: Path) -> None:
    def with_nan(name: str, at: int | None) -> str:
        text = Path(log(tmp_path / name, SAME)).read_text()
        if at is not None:
            line = next(line for line in text.splitlines() if f"iteration {at:8d}/" in line)
            text = text.replace(line, line.replace("grad norm: 1.000", "grad norm: nan"))
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    a, b = with_nan("a.log", 30), with_nan("b.log", None)
    found = divergence.compare(a, b, ["grad_norm"], 0.5).differences[0]
    assert (found.first_step, found.a, found.b) == (30, None, 1.0)
    assert divergence.compare(a, a, ["grad_norm"], 0.0).agree


def test_validation_losses_are_a_field(tmp_path: Path) -> None:
    a = log(tmp_path / "a.log", SAME, {10: 3.0, 20: 2.5})
    b = log(tmp_path / "b.log", SAME, {10: 3.0, 20: 2.0})
    found = divergence.compare(a, b, ["validation_loss"], 0.1).differences[0]
    assert (found.steps, found.first_step, found.a, found.b) == (2, 20, 2.5, 2.0)


@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (1.5, 1)])
def test_the_command_ends_with_1_when_runs_part(tmp_path: Path, scale: float, code: int) -> None:
    a, b = log(tmp_path / "a.log", SAME), log(tmp_path / "b.log", {step: loss * scale for step, loss in SAME.items()})
    command = monitor("diff", a, b)
    plain = subprocess.run(command, capture_output=True, text=True)
    assert (plain.returncode, plain.stderr) == (code, "")
    assert plain.stdout.startswith(
        "loss: 99 steps agree" if code == 0 else "loss: 99 of 99 steps differ, the first is 1 (10 and 15)"
    )
    record = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True).stdout)
    assert (record["kind"], record["agree"], record["fields"][0]["steps"]) == ("diff", code == 0, 99)
