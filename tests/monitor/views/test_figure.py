"""The picture: what is on it."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_runs import run_of, run_of_columns

from lt_monitor.events.steps import Steps
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import figure, figure_panel, palette, plot
from lt_monitor.views.plot_options import PlotOptions
from lt_shared.console import UsageError

LOGS = Path(__file__).parents[1] / "samples"
DEFAULT = PlotOptions()


def read(*names: str) -> list[Run]:
    return run_loader.read([str(LOGS / name) for name in names])


def draw(runs: list[Run], options: PlotOptions = DEFAULT) -> object:
    return figure.draw(runs, plot.short_names([run.name for run in runs]), RunFacts(), options)


def texts(result: object) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in result.findobj(Text) if text.get_text()]


def test_one_run_has_its_curves_marks_and_references() -> None:
    result = draw(read("megatron_new.log"), PlotOptions(references=(("unigram", 6.53),)))
    loss, norm, speed = result.axes
    assert [axis.get_title(loc="left") for axis in result.axes] == ["loss (nats per token)", "gradient norm", "tokens/s"]
    raw, smooth = loss.lines[:2]
    steps = [step for step in range(1, 91) if step != 41]
    assert raw.get_xdata().tolist() == smooth.get_xdata().tolist() == steps
    assert "unigram 6.53" in texts(result)
    legend = [text.get_text() for text in loss.get_legend().get_texts()]
    assert [label.split()[0] for label in legend[:4]] == ["training", "validation", "checkpoint", "resumed"]
    drawn = [np.asarray(line.get_xdata()).tolist() for line in loss.lines]
    assert [25, 50, 75] in drawn
    assert [20, 40, 60, 80] in drawn
    assert drawn.count([60, 60]) == 1
    assert norm.lines[0].get_ydata().max() == pytest.approx(2.5)
    assert speed.lines[0].get_ydata().mean() == pytest.approx(528_000, rel=0.01)


def test_faults_and_missing_losses_are_marked() -> None:
    loss, *_ = draw(read("story.jsonl")).axes
    labels = [text.get_text() for text in loss.get_legend().get_texts()]
    assert labels[2:] == ["checkpoint", "resumed", "fault", "not a number"]
    signs = {
        line.get_marker(): np.asarray(line.get_xdata()).tolist() for line in loss.lines if line.get_color() == palette.LIGHT.fault
    }
    assert signs["D"] == [172, 260, 312]
    assert signs["x"] == [220]


def test_the_steep_beginning_does_not_flatten_the_rest() -> None:
    low, high = draw(read("story.jsonl")).axes[0].get_ylim()
    assert 1.5 < low < 1.85
    assert 4 < high < 8


def test_several_runs_share_the_picture_under_short_names() -> None:
    result = draw(read("megatron_new.log", "megatron_old.log", "lt_train.log"))
    legend = [text.get_text().split()[0] for text in result.axes[0].get_legend().get_texts()]
    assert legend[:6] == ["megatron_new", "megatron_old", "lt_train", "validation", "checkpoint", "resumed"]
    assert "3 runs" in texts(result)
    colours = {line.get_color() for line in result.axes[0].lines if line.get_alpha() == 0.28}
    assert colours == set(palette.LIGHT.runs[:3])


def test_all_panels_keep_their_place_where_a_run_has_no_marks(recwarn: pytest.WarningsRecorder) -> None:
    runs = [*read("story.jsonl"), run_of(*({"step": step, "loss": 2.0, "grad_norm": 1.0} for step in range(1, 9)))]
    result = draw(runs)
    result.canvas.draw()
    heights = [axis.get_position().height for axis in result.axes]
    assert sum(heights) > 0.6
    assert not [warning for warning in recwarn if "constrained_layout" in str(warning.message)]


def test_a_reference_beyond_the_curve_is_on_the_picture() -> None:
    (loss, *_) = draw(read("lt_train.log"), PlotOptions(references=(("chance", 12.0),))).axes
    assert loss.get_ylim()[1] > 12


def test_step_time_stands_in_where_the_sequence_length_is_unknown() -> None:
    run = run_of(*({"step": step, "loss": 2.0, "step_seconds": 1.5} for step in range(1, 4)))
    assert [axis.get_title(loc="left") for axis in draw([run]).axes] == ["loss (nats per token)", "s/step"]


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_single_step_makes_a_picture(form: str, magic: bytes) -> None:
    content = figure.render(form, [run_of({"step": 1, "loss": 2.0, "grad_norm": 0.0})], ["a"], RunFacts(), PlotOptions())
    assert content.startswith(magic)


def test_the_same_input_gives_the_same_bytes() -> None:
    run = run_of({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5})
    svgs = {figure.render("svg", [run], ["a"], RunFacts(), PlotOptions()) for _ in range(2)}
    assert len(svgs) == 1


RENDER = """
import sys
from lt_monitor.events.steps import Steps
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import figure
from lt_monitor.views.plot_options import PlotOptions
steps = Steps.from_records([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
sys.stdout.buffer.write(figure.render(sys.argv[1], [Run("a", [Attempt(1, steps=steps)], [])], ["a"], RunFacts(), PlotOptions()))
"""
SETTINGS = ("text.usetex: True", "savefig.bbox: tight", "svg.fonttype: none")


@pytest.mark.parametrize("form", ["png", "svg"])
def test_settings_in_the_current_directory_are_of_no_effect(form: str, tmp_path: Path) -> None:
    """Anyone may have put a matplotlibrc there; one of its settings starts LaTeX, with all that a text may have it do."""

    def rendered() -> bytes:
        done = subprocess.run([sys.executable, "-P", "-c", RENDER, form], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    plain = rendered()
    (tmp_path / "matplotlibrc").write_text("\n".join(SETTINGS))
    assert rendered() == plain


def test_names_are_drawn_as_they_are_and_cannot_break_the_file() -> None:
    from xml.etree import ElementTree

    names = ["$\\frac{1", "<script>alert(1)</script>--><x>\x1b[31m"]
    runs = [run_of({"step": 1, "loss": 2.0}), run_of({"step": 1, "loss": 3.0})]
    root = ElementTree.fromstring(figure.render("svg", runs, names, RunFacts(), PlotOptions(references=(("$x_", 2.5),))))
    assert not [node for node in root.iter() if isinstance(node.tag, str) and node.tag.rpartition("}")[2] in ("script", "x")]
    assert "$\\frac{1  2.000" in texts(figure.draw(runs, names, RunFacts(), PlotOptions()))


def test_a_million_points_are_thinned_out() -> None:
    numbers = np.arange(1, 1_000_001)
    steps = Steps(numbers, {"loss": 2 + 1 / numbers, "grad_norm": np.ones(len(numbers))}, np.full(len(numbers), np.nan))
    for line in draw([run_of_columns(steps)]).axes[0].lines:
        assert len(line.get_xdata()) <= figure_panel.POINTS


def with_event(points: int, event: int, **columns: float) -> Run:
    """A run that is level but for what happens from step `event` on."""
    numbers = np.arange(1, points + 1)
    values = {name: np.where(numbers >= event, high, 2.0) for name, high in columns.items()}
    return run_of_columns(Steps(numbers, values, np.full(points, np.nan)))


@pytest.mark.parametrize("smooth_steps", [None, 1])
@pytest.mark.parametrize("points", [1000, 100_000])
def test_no_line_rises_before_its_event(points: int, smooth_steps: int | None) -> None:
    # Early in a stretch of 50 steps, of which the median is then that of the event.
    event = points // 3 - 27
    run = with_event(points, event, loss=9.0, grad_norm=7.0)
    loss, norm = draw([run], PlotOptions(smooth_steps=smooth_steps)).axes
    for axis in (loss, norm):
        smooth = axis.lines[1]
        steps, values = np.asarray(smooth.get_xdata()), np.asarray(smooth.get_ydata())
        risen = int(np.flatnonzero(values > 2)[0])
        assert steps[risen] >= event
        if smooth.get_drawstyle() == "default":
            assert steps[risen - 1] >= event - 1


def test_large_numbers_on_an_axis_are_in_units() -> None:
    run = run_of(*({"step": 1_000_000 * step, "loss": 2.0, "tokens_per_second": 1.6e6} for step in range(1, 4)))
    result = draw([run])
    result.canvas.draw()
    shown = [label.get_text() for axis in result.axes for label in (*axis.get_yticklabels(), *axis.get_xticklabels())]
    assert "800k" in shown
    assert "1.6M" in shown
    assert not [text for text in shown if "e+" in text]


def test_chosen_metrics_have_a_panel_each_in_their_order() -> None:
    result = draw(read("megatron_new.log"), PlotOptions(metrics=("lr", "loss", "params_norm")))
    assert [axis.get_title(loc="left") for axis in result.axes] == ["learning rate", "loss (nats per token)", "params_norm"]
    sizes = [axis.get_subplotspec().get_gridspec().get_height_ratios() for axis in result.axes]
    assert sizes[0] == [3.6, 1, 1]
    assert result.axes[0].get_legend().get_texts()[0].get_text() == "lr  0.0003"


def test_the_axes_are_those_asked_for() -> None:
    (run,) = read("story.jsonl")
    options = PlotOptions(x="tokens", x_range=(0.4e9, None), y_range=(None, 3.0), log_x=True, log_y=True)
    result = draw([run], options)
    loss, *others = result.axes
    assert {axis.get_yscale() for axis in result.axes} == {axis.get_xscale() for axis in result.axes} == {"log"}
    assert loss.get_xlim() == pytest.approx((0.4e9, 400 * 512 * 8192))
    assert loss.get_ylim()[1] == 3.0
    assert 1.5 < loss.get_ylim()[0] < 1.9
    assert others[-1].get_xlabel() == "tokens"
    result.canvas.draw()
    ticks = [label.get_text() for label in others[-1].get_xticklabels()]
    assert "1.2B" in ticks or "1B" in ticks
    marked = [x for line in loss.lines for x in np.atleast_1d(line.get_xdata()) if line.get_marker() in ("^", "D", "x")]
    assert marked
    assert min(marked) >= 0.4e9


def test_the_scale_is_that_of_the_range() -> None:
    steps = [{"step": step, "loss": 10.0 if step < 500 else 2.0 + step / 1e4} for step in range(1, 1001)]
    low, high = draw([run_of(*steps)], PlotOptions(x_range=(600, 900))).axes[0].get_ylim()
    assert 2.0 < low < high < 2.2
    log_x = draw([run_of(*steps)], PlotOptions(log_x=True)).axes[0].get_ylim()
    assert log_x[1] > 10


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (PlotOptions(x_range=(2000, None)), "--x-range: nothing is there", "step: 1 to 1000"),
        (PlotOptions(x_range=(600, 900), y_range=(4, 8)), "--y-range: nothing is there", "loss: 2.06 to 2.09"),
    ],
    ids=["x", "y"],
)
def test_a_range_without_a_value_is_refused(options: PlotOptions, message: str, hint: str) -> None:
    steps = [{"step": step, "loss": 10.0 if step < 500 else 2.0 + step / 1e4} for step in range(1, 1001)]
    with pytest.raises(UsageError, match=message) as refused:
        draw([run_of(*steps)], options)
    assert refused.value.hint == hint


def test_smoothing_can_be_chosen_or_left_out() -> None:
    run = run_of(*({"step": 10 * step, "loss": float(step % 2)} for step in range(1, 201)))
    (raw,) = draw([run], PlotOptions(smooth_steps=0)).axes[0].lines
    assert raw.get_ydata().tolist() == [1.0, 0.0] * 100
    assert raw.get_alpha() is None
    _, smooth = draw([run], PlotOptions(smooth_steps=200)).axes[0].lines
    assert set(smooth.get_ydata()[100:]) == {0.5}


def test_a_dark_picture_is_dark() -> None:
    from matplotlib import image

    content = figure.render("png", [run_of({"step": 1, "loss": 2.0})], ["a"], RunFacts(), PlotOptions(dark=True))
    picture = image.imread(io.BytesIO(content), format="png")[..., :3]
    assert np.median(picture) < 0.2
    assert picture.max() > 0.8


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("values", [[0.0], [-1.0, -2.0], [0.0, 1e-9], [1e300, 1.0], [2.0]])
def test_values_that_an_axis_may_not_like(values: list[float], log_y: bool) -> None:
    records = [{"step": step, "loss": value, "grad_norm": value} for step, value in enumerate(values, 0)]
    options = PlotOptions(log_y=log_y, log_x=log_y, metrics=("grad_norm", "loss"), x_range=(-1, 9) if log_y else (None, None))
    assert figure.render("svg", [run_of(*records)], ["a"], RunFacts(), options)


@pytest.mark.parametrize("log_y", [False, True])
def test_numbers_that_are_too_large_to_draw_are_left_out(log_y: bool) -> None:
    evaluation = {"kind": "eval", "step": 2, "loss": 1.7e308}
    records = [{"step": step, "loss": (-1) ** step * 1.7e308 if step % 3 else 2.0, "grad_norm": 1e308} for step in range(1, 9)]
    run = run_of(*records, events=[evaluation])
    options = PlotOptions(log_y=log_y)
    assert figure.render("svg", [run], ["a"], RunFacts(), options)
    loss, *others = draw([run], options).axes
    assert not others
    assert loss.lines[0].get_xdata().tolist() == [3, 6]
