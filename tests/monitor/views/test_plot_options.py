"""How ranges are written, and what is no range. References are in test_plot.py."""

import pytest

from lt_monitor.views.plot_options import PlotOptions, parse_range, parse_reference


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("1:5", (1, 5)),
        ("1e9:", (1e9, None)),
        (":0.5", (None, 0.5)),
        ("-2:-1", (-2, -1)),
        (":", (None, None)),
    ],
)
def test_ranges(text: str, ends: tuple[float | None, float | None]) -> None:
    assert parse_range(text) == ends


@pytest.mark.parametrize("text", ["", "5", "a:b", "nan:1", "1:inf", "1:2:3", "1-2"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="expected LOW:HIGH"):
        parse_range(text)


def test_options_of_pictures() -> None:
    assert PlotOptions(metrics=("lr",), smooth_steps=0, references=(("a", 1.0),)).of_pictures_only() == []
    given = PlotOptions(x="hours", x_range=(1, None), y_range=(None, 2), log_x=True, log_y=True, dark=True)
    assert given.of_pictures_only() == ["--x", "--x-range", "--y-range", "--log-x", "--log-y", "--dark"]


@pytest.mark.parametrize("text", ["-1e308:1e308", "1e101:", ":-2e100", "nan:1", "1:inf"])
def test_ends_that_cannot_be_drawn_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected LOW:HIGH"):
        parse_range(text)
    with pytest.raises(ValueError, match="expected NAME=VALUE"):
        parse_reference("a=1e308")


@pytest.mark.parametrize(("text", "said"), [("9:5", "9 is not below 5"), ("5:5", "5 is not below 5")])
def test_ends_in_the_wrong_order_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_range(text)
