"""The output of plot appears whole or not at all, as what its name says."""

import os
from pathlib import Path

import pytest

from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import figure, plot, plot_options
from lt_monitor.views.plot_options import PlotOptions
from lt_shared.console import BadData, CannotCreate, UsageError

LOGS = Path(__file__).parents[1] / "samples"


def make(log: str, output: str | None) -> None:
    plot.plot([log], output, RunFacts(), PlotOptions())


def test_the_file_is_a_png_of_the_promised_size(tmp_path: Path) -> None:
    from matplotlib import image

    make(str(LOGS / "lt_train.log"), str(tmp_path / "loss.png"))
    height, width, _ = image.imread(tmp_path / "loss.png").shape
    assert width == 10 * figure.DPI
    assert height > 1000
    assert os.listdir(tmp_path) == ["loss.png"]


@pytest.mark.parametrize(("name", "beginning"), [("a.svg", "<?xml"), ("a.HTML", "<!doctype html>")])
def test_the_ending_says_what_the_file_is(name: str, beginning: str, tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text('{"v":1,"kind":"step","step":1,"loss":2.0}\n')
    make(str(log), str(tmp_path / name))
    assert (tmp_path / name).read_text().startswith(beginning)


def test_a_pdf_is_one_and_always_the_same(tmp_path: Path) -> None:
    for name in ("a.pdf", "b.PDF"):
        make(str(LOGS / "lt_train.log"), str(tmp_path / name))
    content = (tmp_path / "a.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert content == (tmp_path / "b.PDF").read_bytes()


def test_options_that_the_output_cannot_show(tmp_path: Path) -> None:
    log = str(LOGS / "lt_train.log")
    with pytest.raises(UsageError, match="--log-x is for pictures: sparklines"):
        plot.plot([log], None, RunFacts(), PlotOptions(log_x=True))
    with pytest.raises(UsageError, match="--dark is for pictures: the report"):
        plot.plot([log], str(tmp_path / "a.html"), RunFacts(), PlotOptions(dark=True))
    assert os.listdir(tmp_path) == []


def test_chosen_metrics_are_sparklines_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(LOGS / "megatron_new.log"), str(LOGS / "story.jsonl")]
    plot.plot(logs, None, RunFacts(), PlotOptions(metrics=("params_norm", "loss")))
    first, second = capsys.readouterr().out.split("\n\n")
    assert [line[:12].strip() for line in first.splitlines()[1:3]] == ["params_norm", "loss"]
    assert second.splitlines()[1].startswith("loss ")


def test_without_an_output_there_are_sparklines(capsys: pytest.CaptureFixture[str]) -> None:
    make(str(LOGS / "story.jsonl"), None)
    output = capsys.readouterr().out
    assert output.startswith("story  step 400 of 500\nloss ")


def test_names_lose_only_what_they_share() -> None:
    assert plot.short_names(["runs/a", "runs/b/c"]) == ["a", "b/c"]
    assert plot.short_names(["runs/a"]) == ["runs/a"]
    assert plot.short_names(["a", "/b"]) == ["a", "/b"]
    assert plot.short_names(["-", "a"]) == ["-", "a"]
    assert plot.short_names(["s3://x/a", "s3://x/b"]) == ["s3://x/a", "s3://x/b"]


@pytest.mark.parametrize("text", ["6.53", "unigram=", "=6.53", "unigram=low", "unigram=nan", "unigram=inf"])
def test_references_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=VALUE"):
        plot_options.parse_reference(text)


def test_references_may_have_an_equals_sign_in_their_name() -> None:
    assert plot_options.parse_reference("n=2 gram=4.5") == ("n=2 gram", 4.5)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    log = str(LOGS / "lt_train.log")
    for name in ("loss.jpg", "loss"):
        with pytest.raises(UsageError, match="not a known image format"):
            make(log, str(tmp_path / name))
    with pytest.raises(CannotCreate):
        make(log, str(tmp_path / "missing" / "loss.png"))
    assert os.listdir(tmp_path) == []


def test_a_run_without_any_loss_has_no_picture(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(" iteration 1/ 10 | number of nan iterations:   1 |\n")
    with pytest.raises(BadData, match="no step has a loss"):
        make(str(log), str(tmp_path / "loss.png"))
    assert os.listdir(tmp_path) == ["a.log"]
