"""Rows of text read eight bytes at a time, compared with reading them a byte at a time."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs.fast.digit_words import RowPattern, integer

# A line: constant text, and numbers that may have spaces in front (P) or not (D).
SHAPES = st.lists(st.tuples(st.sampled_from("cDP"), st.integers(1, 19)), min_size=1, max_size=8)


def rows_of(lines: list[bytes]) -> np.ndarray:
    width = -(-len(lines[0]) // 8) * 8
    return np.frombuffer(b"".join(line.ljust(width, b"\n") for line in lines), np.uint8).reshape(len(lines), width)


@given(SHAPES, st.integers(0, 2**32))
def test_lines_match_where_each_byte_may_be(shape: list[tuple[str, int]], seed: int) -> None:
    sample, variable, padding = b"", [], []
    for kind, length in shape:
        sample += (b"x" if kind == "c" else b"7") * length
        variable += [kind != "c"] * length
        padding += [kind == "P"] * length
    choice = random.Random(seed)
    where = [index for index, may_differ in enumerate(variable) if may_differ] or [0]
    lines = [sample]
    for _ in range(200):
        line = bytearray(sample)
        for index in choice.choices(where, k=choice.randrange(4)):
            line[index] = choice.choice(b"09   !)/:?A\x80\x00\x12")
        lines.append(bytes(line))
    found = RowPattern(np.frombuffer(sample, np.uint8), np.array(variable), np.array(padding)).matches(rows_of(lines))
    assert found.tolist() == [is_alike(line, sample, variable, padding) for line in lines]


def is_alike(line: bytes, sample: bytes, variable: list[bool], padding: list[bool]) -> bool:
    """Digits of adjacent numbers are one number, whose spaces may only be in front."""
    digits = b"0123456789"
    for index, byte in enumerate(line):
        is_behind_digit = index > 0 and variable[index - 1] and line[index - 1] in digits
        may_be_space = padding[index] and not is_behind_digit
        if not (byte == sample[index] if not variable[index] else byte in digits or (byte == ord(" ") and may_be_space)):
            return False
    return True


@given(
    st.integers(8, 48).flatmap(
        lambda length: st.tuples(
            st.lists(st.text("0123456789 ", min_size=length, max_size=length), min_size=1, max_size=20),
            st.lists(st.integers(0, length - 1), unique=True, max_size=15).map(sorted),
        )
    )
)
def test_digits_are_the_integer_that_they_spell(drawn: tuple[list[str], list[int]]) -> None:
    lines, columns = drawn
    numbers = integer(rows_of([line.encode() for line in lines]), columns)
    spelled = ["".join(line[column] for column in columns).replace(" ", "0") for line in lines]
    assert numbers.tolist() == [int(digits or "0") for digits in spelled]
    assert numbers.dtype == np.int64


def test_more_rows_than_are_compared_at_once() -> None:
    pattern = RowPattern(np.frombuffer(b"step 0001", np.uint8), np.array([False] * 5 + [True] * 4), np.zeros(9, bool))
    rows = rows_of([b"step %04d" % number if number % 7 else b"step 00x1" for number in range(5000)])
    assert pattern.matches(rows).tolist() == [number % 7 > 0 for number in range(5000)]
    assert pattern.matches(rows[:0]).tolist() == []
