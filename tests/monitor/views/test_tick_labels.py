"""Numbers beside an axis: short, and without powers of ten where people say thousands and millions."""

import pytest

from lt_monitor.views.tick_labels import compact


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (2.13456, "2.135"), (9999, "9999"), (9999.6, "10k"), (10_000, "10k"), (590_390, "590.4k"), (800_000, "800k")),
        *((999_960, "1M"), (1_600_000, "1.6M"), (12_345_678, "12.35M"), (3e9, "3B"), (15e12, "15T"), (3e15, "3000T")),
        *((-1_600_000, "-1.6M"), (3e-4, "0.0003"), (0.5, "0.5")),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert compact(value) == text


def test_fewer_digits() -> None:
    assert (compact(590_390, 3), compact(3e15, 3)) == ("590k", "3e+03T")
