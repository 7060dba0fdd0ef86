"""Each line is a document or is reported: nothing is lost, changed or taken for something else."""

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.readers.jsonl import MemoryChunk


class Found(NamedTuple):
    texts: list[bytes]
    sequences: list[int]
    bad_lines: list[str]


def batch(*lines: bytes, json_key: str = "text") -> Found:
    chunk = MemoryChunk.of("file.jsonl", b"".join(line + b"\n" for line in lines))
    found = chunk.batch((json_key,))
    column = found.columns[0]
    return Found(column.texts.to_list(), column.texts_per_document.tolist(), [str(bad) for bad in found.bad_lines])


@given(st.lists(st.text(), max_size=10), st.booleans())
def test_texts_come_back(texts: list[str], ascii_only: bool) -> None:
    lines = [json.dumps({"id": number, "text": text}, ensure_ascii=ascii_only).encode() for number, text in enumerate(texts)]
    found = batch(*lines)
    assert found.bad_lines == []
    assert found.texts == [text.encode() for text in texts if text]
    assert found.sequences == [1 if text else 0 for text in texts]


def test_lists_become_sequences_without_the_empty_items() -> None:
    found = batch(b'{"text": ["a", "", "b"]}', b'{"text": []}', b'{"text": [""]}', b'{"text": "c"}')
    assert found.texts == [b"a", b"b", b"c"]
    assert found.sequences == [2, 0, 0, 1]


def test_blank_lines_are_ignored_and_counted() -> None:
    found = batch(b"", b'{"text": "a"}', b"  \t\r", b"oops")
    assert found.texts == [b"a"]
    assert found.bad_lines == ["file.jsonl, line 4, byte 20: not JSON: Expecting value at column 1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "not JSON: Expecting ',' delimiter at column 13"),
        (b'{"text": "a"} x', "not JSON: Extra data at column 15"),
        (b'{"text": "a\x01b"}', "not JSON: Invalid control character at column 12"),
        (b'"text"', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no key 'text'"),
        (b'{"Text": "a", "id\\n": 7}', "no key 'text', it has 'Text', 'id\\n'"),
        (
            b'{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1}',
            "no key 'text', it has 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'",
        ),
        (b'{"text": null}', "'text' is null, expected a string or a list of strings"),
        (b'{"text": 1}', "'text' is a number, expected a string or a list of strings"),
        (b'{"text": true}', "'text' is a boolean, expected a string or a list of strings"),
        (b'{"text": {"a": "b"}}', "'text' is an object, expected a string or a list of strings"),
        (b'{"text": ["a", 1]}', "'text' is a list with other items than strings, expected a string or a list of strings"),
        (b'{"text": ["a", ["b"]]}', "'text' is a list with other items than strings, expected a string or a list of strings"),
        (b'{"text": "ab\\ud800c"}', "lone surrogate U+D800 at character 3 of the text"),
        (b'{"text": ["a", "\\udfff"]}', "lone surrogate U+DFFF at character 1 of the text"),
        (b'{"text": "\xed\xa0\x80"}', "invalid UTF-8: invalid continuation byte at byte 11 of the line"),
        (b'{"text": "\xff"}', "invalid UTF-8: invalid start byte at byte 11 of the line"),
        (b'{"text": "caf\xe9"}', "invalid UTF-8"),
        (b'\xef\xbb\xbf{"text": "a"}', "not JSON: Unexpected UTF-8 BOM"),
        (b"[" * 100_000, "not usable JSON: nested too deeply"),
    ],
)
def test_bad_lines(line: bytes, reason: str) -> None:
    found = batch(b'{"text": "before"}', line, b'{"text": "after"}')
    assert found.texts == [b"before", b"after"]
    assert found.sequences == [1, 1]
    assert len(found.bad_lines) == 1
    assert found.bad_lines[0].startswith(f"file.jsonl, line 2, byte 19: {reason}")


@pytest.mark.parametrize(
    "line",
    [
        b'{"score": NaN, "text": "a"}',
        b'{"score": -Infinity, "text": "a"}',
        b'{"score": 1e999, "text": "a"}',
        b'{"id": 123456789012345678901234567890, "text": "a"}',
        b'{"id": ' + b"9" * 5000 + b', "text": "a"}',
        b'{"title": "\\ud800", "text": "a"}',
        b'{"text": "b", "text": "a"}',
        b'{"text": "a"}\r',
        b' \t{"text"\t:\t"\\u0061"} ',
    ],
)
def test_what_python_writes_is_read(line: bytes) -> None:
    found = batch(line)
    assert found.texts == [b"a"]
    assert found.bad_lines == []


def test_escapes_and_nul_bytes() -> None:
    found = batch(b'{"text": "\\u0000\\n\\ud83d\\udc4d\\u2028"}')
    assert found.texts == ["\0\n\U0001f44d\u2028".encode()]


def test_another_key() -> None:
    found = batch(b'{"text": "a", "content": "b"}', json_key="content")
    assert found.texts == [b"b"]
