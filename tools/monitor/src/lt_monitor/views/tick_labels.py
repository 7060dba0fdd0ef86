"""Numbers as people write them beside an axis or a curve: 800k, 1.6M, 15T."""

UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
# Below it a number is shorter without a unit.
SMALLEST = 1e4


def compact(value: float, digits: int = 4) -> str:
    """A number of at most `digits` significant digits, from 10,000 on in thousands, millions, billions or trillions."""
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= SMALLEST:
        for size, unit in UNITS:
            if abs(rounded) >= size:
                return f"{rounded / size:.{digits}g}{unit}"
    return f"{rounded:.{digits}g}"
