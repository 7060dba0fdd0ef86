"""Megatron's --split: the shares of a dataset's sequences that are training, validation and test data."""

import math

from lt_shared.console import BadConfig


def split_shares(split: str) -> tuple[float, float, float]:
    """Training, validation and test shares of "99,1,0", summing to 1. Raises BadConfig."""
    try:
        values = [float(part) for part in split.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 3 or any(not math.isfinite(value) or value < 0 for value in values) or sum(values) <= 0:
        raise BadConfig(f"split {split!r} is not three shares like 99,1,0", "for example --split 98,1,1")
    padded = [*values, 0.0, 0.0][:3]
    total = sum(padded)
    return padded[0] / total, padded[1] / total, padded[2] / total


def split_ranges(split: str, sequences: int) -> list[range]:
    """The sequences that belong to training, validation and test, rounded as in Megatron."""
    training, validation, test = split_shares(split)
    edges = [0.0, training, training + validation, training + validation + test]
    boundaries = [round(edge * sequences) for edge in edges]
    shares = (training, validation, test)
    return [
        range(first, last if share else first) for first, last, share in zip(boundaries, boundaries[1:], shares, strict=False)
    ]
