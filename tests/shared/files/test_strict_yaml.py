"""YAML of strangers: one reading, bounded time, the same values as PyYAML's safe loader."""

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.files import strict_yaml

SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(max_size=9)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=20
)


@given(VALUES)
def test_what_is_written_is_read(value: object) -> None:
    assert strict_yaml.loads(yaml.safe_dump(value)) == value


def test_anchors_and_merges_are_read_as_pyyaml_reads_them() -> None:
    text = "base: &b {lr: 0.1, betas: &c [0.9, 0.95]}\none: {<<: *b, lr: 1}\ntwo: *c\ndate: 2024-01-02\n"
    assert strict_yaml.loads(text) == yaml.safe_load(text)
    assert strict_yaml.loads("") is None


def bomb(ways: int) -> str:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['1'] * 9)}]\n" for n in range(ways)]
    return "".join(levels)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", r"'a' twice in one mapping in line 3, column 1"),
        ("m: {lr: 1, 'lr': 2}", "'lr' twice"),
        ("<<: {a: 1}\n<<: {b: 1}\n", "'<<' twice"),
        (bomb(9), "values, with aliases written out"),
        (bomb(60), "values, with aliases written out"),
        ("".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9) if n else ''}]}}\n" for n in range(40)), "aliases"),
        ("a: &a [*a]", "aliases"),
        ("a: &a {b: *a}", "aliases"),
        ("a: *b", "undefined alias 'b'"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: 2024-13-45", "month"),
        ("a: [", "expected the node content"),
        ("a: \x07", "a character that it does not have"),
        ("a: 1\n---\nb: 2\n", "but found another document"),
    ],
)
def test_what_has_two_readings_or_no_end_is_refused(text: str, reason: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match=reason):
        strict_yaml.loads(text)
    assert time.process_time() - start < 20
