"""Scores of checkpoints where people look for them: summary, curves, pictures and the report."""

import json
from pathlib import Path

import pytest

from lt_monitor.runs import metrics, run_loader, scores, summary
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import html_report, plot, summary_table
from lt_monitor.views.plot_options import PlotOptions
from lt_shared.console import UsageError

LINE = (
    " [2026-01-16 07:32:{second:02}] iteration {step:8}/      40 | consumed samples: {samples:12} |"
    " elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-04 | global batch size:     8 |"
    " lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run1" / "train.log"
    path.parent.mkdir()
    path.write_text("".join(LINE.format(second=step, step=step, samples=8 * step, loss=8 - step / 10) for step in (10, 20, 30)))
    return path


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    """Evaluated were checkpoints at steps that were not logged, too."""
    for step in (10, 15, 30):
        values = {"hellaswag": {"acc,none": 0.2, "acc_norm,none": step / 100}, "wikitext": {"word_perplexity,none": 100 - step}}
        path = tmp_path / "evals" / f"iter_{step:07d}" / "eval" / "results_x.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"results": values if step < 30 else {"hellaswag": values["hellaswag"]}}))
    return tmp_path / "evals"


@pytest.fixture
def run(log: Path, evals: Path) -> Run:
    (found,) = run_loader.read([str(log)])
    scores.attach([found], [str(evals)])
    return found


def test_summary(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = summary.summarize(run)
    assert found.scores == {
        "hellaswag/acc_norm": {"step": 30, "value": 0.3},
        "wikitext/word_perplexity": {"step": 15, "value": 85.0},
    }
    assert found.step == 30
    summary_table.print_table([found])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("scores")]
    assert line.endswith("hellaswag/acc_norm 0.3 at step 30, wikitext/word_perplexity 85 at step 15")


def test_without_scores_nothing_is_said_of_them(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_loader.read([str(log)])
    scores.attach([found], [])
    one = summary.summarize(found)
    assert one.scores == {}
    summary_table.print_table([one])
    assert "\nscores" not in capsys.readouterr().out


def test_curves_have_the_points_that_were_evaluated(run: Run) -> None:
    found = metrics.curves_of([run], RunFacts())
    assert [metric.short for metric, _ in found] == ["loss", "grad norm", "s/step", "hellaswag", "wikitext"]
    ((steps, values),) = found[3][1]
    assert (steps.tolist(), values.tolist()) == ([10, 15, 30], [0.1, 0.15, 0.3])
    ((metric, ((steps, _),)),) = metrics.curves_of([run], RunFacts(), ["HellaSwag/acc"])
    assert (metric.key, metric.label, steps.tolist()) == ("hellaswag/acc", "hellaswag/acc", [10, 15, 30])
    with pytest.raises(UsageError) as caught:
        metrics.curves_of([run], RunFacts(), ["hellaswag/f1"])
    assert "hellaswag/acc_norm" in (caught.value.hint or "")


def test_many_benchmarks_leave_room_for_the_loss(run: Run) -> None:
    run.main_scores = tuple(f"{run.main_scores[0]}" for _ in range(3)) + run.main_scores
    assert len(metrics.curves_of([run], RunFacts())) == 5, "each once"


@pytest.mark.parametrize("form", ["png", "svg"])
def test_pictures(form: str, log: Path, evals: Path, tmp_path: Path) -> None:
    output = tmp_path / f"loss.{form}"
    plot.plot([str(log)], str(output), RunFacts(), PlotOptions(), [str(evals)])
    content = output.read_bytes()
    assert len(content) > 1000
    plot.plot([str(log)], str(tmp_path / f"without.{form}"), RunFacts(), PlotOptions())
    assert content != (tmp_path / f"without.{form}").read_bytes()


def test_report(run: Run) -> None:
    page = html_report.build([run], ["run1"], RunFacts(), PlotOptions())
    assert "<h3>hellaswag/acc_norm" in page
    assert "<dt>hellaswag/acc_norm</dt><dd>0.3" in page
    assert "at step 15" in page


def test_names_from_files_are_text_in_the_report(run: Run) -> None:
    run.main_scores = ("<script>alert(1)</script>/acc",)
    run.scores.columns[run.main_scores[0]] = run.scores.columns["hellaswag/acc"]
    page = html_report.build([run], ["run1"], RunFacts(), PlotOptions())
    assert "<script>alert(1)" not in page


def test_lines_of_text(log: Path, evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot.plot([str(log)], None, RunFacts(), PlotOptions(), [str(evals)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hellaswag")]
    assert line.split()[1] == "0.1" and line.split()[-1] == "0.3"


def test_a_directory_for_each_run(log: Path, evals: Path) -> None:
    runs = run_loader.read([str(log)])
    with pytest.raises(UsageError, match=r"--evals: 2 for 1 runs: .*run1"):
        scores.attach(runs, [str(evals), str(evals)])
