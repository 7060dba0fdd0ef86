"""The lines of some positions are the same however many positions there are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs.fast import step_templates


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.booleans(), st.data())
def test_lines_of_positions(lengths: list[int], has_last_newline: bool, data: st.DataObject) -> None:
    block = b"\n".join(b"x" * length for length in lengths) + b"\n" * has_last_newline
    if not block:
        return
    positions = sorted(data.draw(st.sets(st.integers(0, len(block) - 1), min_size=1)))
    expected = list(
        dict.fromkeys(
            (block.rfind(b"\n", 0, at) + 1, end if (end := block.find(b"\n", at)) >= 0 else len(block)) for at in positions
        )
    )
    many = step_templates.lines_of(block, np.array(positions))
    # So much text behind makes the positions few.
    padding = b"" if has_last_newline else b"\n"
    few = step_templates.lines_of(block + padding + b"y" * step_templates.BYTES_PER_SEARCH * 50, np.array(positions))
    for begins, ends in (many, few):
        assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == expected
