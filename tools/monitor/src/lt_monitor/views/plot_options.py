"""The picture options of `lt-monitor plot`, and their syntax."""

import dataclasses

X_AXES = ("step", "tokens", "hours")

Reference = tuple[str, float]
# The lower and the upper end; None means the end of the curves.
Range = tuple[float | None, float | None]
NO_RANGE: Range = (None, None)


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """`metrics` by name, empty for loss, gradient norm and speed. `references` are labelled lines at losses.

    `x` is one of X_AXES, `x_range` has its unit. `y_range` applies to the first metric. `smooth_steps` is the window of the
    smoothed curves: None for the usual share of the run, 0 for no smoothing.
    """

    metrics: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    smooth_steps: int | None = None
    x: str = "step"
    x_range: Range = NO_RANGE
    y_range: Range = NO_RANGE
    log_x: bool = False
    log_y: bool = False
    dark: bool = False

    def of_pictures_only(self) -> list[str]:
        """The requested options that only pictures have."""
        is_given_by_option = {
            "--x": self.x != "step",
            "--x-range": self.x_range != NO_RANGE,
            "--y-range": self.y_range != NO_RANGE,
            "--log-x": self.log_x,
            "--log-y": self.log_y,
            "--dark": self.dark,
        }
        return [option for option, is_given in is_given_by_option.items() if is_given]


def parse_reference(text: str) -> Reference:
    """`NAME=VALUE` of --reference. Raises ValueError when it is something else."""
    name, equals, value = text.rpartition("=")
    number = _number(value)
    if not equals or not name or number is None:
        raise ValueError(f"{text!r}: expected NAME=VALUE, e.g. unigram=6.53")
    return name, number


def parse_range(text: str) -> Range:
    """Parse `LOW:HIGH`; either end may be empty. Raises ValueError for other text."""
    low, colon, high = text.partition(":")
    ends = tuple(_number(end) if end.strip() else None for end in (low, high))
    is_number = all(number is not None for number, end in zip(ends, (low, high), strict=True) if end.strip())
    if not colon or not is_number:
        raise ValueError(f"{text!r}: expected LOW:HIGH, LOW: or :HIGH, e.g. 1000:5000")
    if ends[0] is not None and ends[1] is not None and ends[0] >= ends[1]:
        raise ValueError(f"{text!r}: {ends[0]:g} is not below {ends[1]:g}")
    return ends[0], ends[1]


def _number(text: str) -> float | None:
    # NumPy's time to load is not for --help.
    from lt_monitor.runs.curves import LARGEST

    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None
