"""JSON with one reading only."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.files import strict_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_it_reads_what_json_writes(value: object) -> None:
    assert strict_json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "'a' twice"),
        ('{"b": 1, "a": 2, "c": 3, "a": 4, "d": 5}', "'a' twice"),
        ('[{"x": {"y": 1, "y": 1}}]', "'y' twice"),
        (r'{"a": 1, "\u0061": 2}', "'a' twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[1e999]", "1e999 is too large"),
        (r'["\ud800"]', "surrogates not allowed"),
        (r'{"\uDFFF": 1}', "surrogates not allowed"),
        ('{"a": 1}'.encode("utf-16"), "can't decode"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": "\xff"}', "can't decode"),
        ("{", "Expecting"),
    ],
)
def test_it_refuses_what_has_two_readings(content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strict_json.loads(content)


def test_bytes_in_paths() -> None:
    """As `os.fsdecode` gives them; other halves of surrogate pairs stand for nothing."""
    assert os.fsencode(strict_json.loads(b'["caf\\udce9"]', has_paths=True)[0]) == b"caf\xe9"
    for text, has_paths in ((b'["caf\\udce9"]', False), (b'["\\ud800"]', True), (b'["\\udd00"]', True)):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            strict_json.loads(text, has_paths=has_paths)
