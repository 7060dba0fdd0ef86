"""The picture: what is on it, and that it appears whole or not at all."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from lt_monitor import plot, runs
from lt_monitor.runs import Run
from lt_shared.console import BadData, CannotCreate, UsageError

LOGS = Path(__file__).parent / "logs"


def read(*names: str) -> list[Run]:
    return runs.read([str(LOGS / name) for name in names])


def texts(figure: object) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_one_run_has_its_curves_marks_and_references() -> None:
    figure = plot.draw(read("megatron_new.log"), [("unigram", 6.53)])
    loss, norm, speed = figure.axes
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["loss (nats per token)", "gradient norm", "tokens/s"]
    raw, smooth = loss.lines[:2]
    steps = [step for step in range(1, 91) if step != 41]
    assert raw.get_xdata().tolist() == smooth.get_xdata().tolist() == steps
    assert "unigram 6.53" in texts(figure)
    legend = [text.get_text() for text in loss.get_legend().get_texts()]
    assert [label.split()[0] for label in legend] == ["training", "validation", "checkpoint", "resumed"]
    drawn = [np.asarray(line.get_xdata()).tolist() for line in loss.lines]
    assert [25, 50, 75] in drawn
    assert [20, 40, 60, 80] in drawn
    assert drawn.count([60, 60]) == 1
    assert loss.get_ylim()[0] < 2.2 < 11 < loss.get_ylim()[1]
    assert norm.lines[0].get_ydata().max() == pytest.approx(2.5)
    assert speed.lines[0].get_ydata().mean() == pytest.approx(528_000, rel=0.01)


def test_several_runs_share_the_picture_under_short_names() -> None:
    figure = plot.draw(read("megatron_new.log", "megatron_old.log", "lt_train.log"), [])
    legend = [text.get_text().split()[0] for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["megatron_new", "megatron_old", "lt_train", "validation", "checkpoint", "resumed"]
    assert texts(figure)[-1] == "3 runs" or "3 runs" in texts(figure)
    colours = {line.get_color() for line in figure.axes[0].lines if line.get_alpha()}
    assert colours == set(plot.COLOURS[:3])


def test_a_reference_beyond_the_curve_is_on_the_picture() -> None:
    (loss, *_) = plot.draw(read("lt_train.log"), [("chance", 12.0)]).axes
    assert loss.get_ylim()[1] > 12


def test_step_time_stands_in_where_the_sequence_length_is_unknown() -> None:
    run = Run("a", steps={step: {"step": step, "loss": 2.0, "step_seconds": 1.5} for step in range(1, 4)})
    assert [axis.get_title(loc="left") for axis in plot.draw([run], []).axes] == ["loss (nats per token)", "s/step"]


def test_a_single_step_makes_a_picture() -> None:
    figure = plot.draw([Run("a", steps={1: {"step": 1, "loss": 2.0, "grad_norm": 0.0}})], [])
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_the_file_is_a_png_of_the_promised_size(tmp_path: Path) -> None:
    from matplotlib import image

    plot.plot([str(LOGS / "lt_train.log")], str(tmp_path / "loss.png"), [])
    height, width, _ = image.imread(tmp_path / "loss.png").shape
    assert width == 10 * plot.DPI
    assert height > 1000
    assert os.listdir(tmp_path) == ["loss.png"]


def test_names_lose_only_what_they_share() -> None:
    assert plot._short_names(["runs/a", "runs/b/c"]) == ["a", "b/c"]
    assert plot._short_names(["runs/a"]) == ["runs/a"]
    assert plot._short_names(["a", "/b"]) == ["a", "/b"]
    assert plot._short_names(["-", "a"]) == ["-", "a"]
    assert plot._short_names(["s3://x/a", "s3://x/b"]) == ["s3://x/a", "s3://x/b"]


@pytest.mark.parametrize("text", ["6.53", "unigram=", "=6.53", "unigram=low", "unigram=nan", "unigram=inf"])
def test_references_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        plot.parse_reference(text)


def test_references_may_have_an_equals_sign_in_their_name() -> None:
    assert plot.parse_reference("n=2 gram=4.5") == ("n=2 gram", 4.5)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    log = str(LOGS / "lt_train.log")
    with pytest.raises(UsageError, match="PNG"):
        plot.plot([log], str(tmp_path / "loss.pdf"), [])
    with pytest.raises(CannotCreate):
        plot.plot([log], str(tmp_path / "missing" / "loss.png"), [])
    assert os.listdir(tmp_path) == []


def test_a_run_without_any_loss_has_no_picture(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(" iteration 1/ 10 | number of nan iterations:   1 |\n")
    with pytest.raises(BadData, match="no step has a loss"):
        plot.plot([str(log)], str(tmp_path / "loss.png"), [])
    assert os.listdir(tmp_path) == ["a.log"]
