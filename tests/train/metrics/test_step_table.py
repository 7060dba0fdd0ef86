"""Steps as a terminal shows them: short rows, and a header that can always be seen."""

import pytest

from lt_shared.contracts.run_log import Step
from lt_train.metrics.step_table import HEADER, StepTable


def row(step: int, total: int, seconds: float | None, loss: float | None = 2.5, tokens_per_second: float = 12345.6) -> list[str]:
    return StepTable().lines(Step(step, total, step_seconds=seconds, loss=loss), tokens_per_second)[1].split(maxsplit=3)


@pytest.mark.parametrize(
    ("left", "seconds", "shown"),
    [
        (0, 9.0, "0:00"),
        (1, 59.4, "0:59"),
        (1, 59.6, "1:00"),
        (10, 6.0, "1:00"),
        (3599, 1.0, "59:59"),
        (3600, 1.0, "1:00:00"),
        (86399, 1.0, "23:59:59"),
        (86400 * 12 + 3660, 1.0, "12 d 01:01"),
        (7, None, "-"),
        (7, float("inf"), "-"),
        (7, float("nan"), "-"),
    ],
)
def test_time_left(left: int, seconds: float | None, shown: str) -> None:
    assert row(100, 100 + left, seconds)[3] == shown


def test_a_row() -> None:
    assert row(1000, 250000, 1.0) == ["1,000/250,000", "2.5000", "12,346", "2 d 21:10"]
    assert row(1, 2, 1.0, loss=None)[1] == "-"
    assert row(1, 2, 1.0, loss=float("nan"))[1] == "nan"


def test_every_line_fits_into_80_columns_under_its_header() -> None:
    table = StepTable()
    lines = table.lines(Step(1_000_000, 2_000_000, step_seconds=60.0, loss=12.5), 123_456_789.0)
    assert lines[0] == HEADER
    assert all(len(line) <= 80 for line in lines) and lines[1].endswith(" 694 d 10:40")


def test_the_header_is_printed_again_before_it_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "16")
    table = StepTable()
    shown = [line for step in range(50) for line in table.lines(Step(step, 50, step_seconds=1.0), 1.0)]
    for end in range(1, len(shown) + 1):
        assert HEADER in shown[max(0, end - 16) : end]
    assert shown.count(HEADER) == 5
    monkeypatch.setenv("LINES", "2")
    assert table.lines(Step(1, 2, step_seconds=1.0), 1.0)[0] == HEADER
