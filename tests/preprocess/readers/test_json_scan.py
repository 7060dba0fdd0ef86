"""The compiled scan takes a line for what the JSON parsers take it for, or leaves it to them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lt_preprocess.readers import json_batch, json_line
from lt_preprocess.readers.chunks import Lines

KEYS = ("text", "title")

Result = tuple[list[list[bytes]], list[list[int]], list[str]]


def scanned(content: bytes, keys: tuple[str, ...] = KEYS) -> Result:
    found = json_batch.json_lines(Lines.of(content), "file", keys)
    return (
        [column.texts.to_list() for column in found.columns],
        [column.texts_per_document.tolist() for column in found.columns],
        [f"{bad}: {bad.raw!r}" for bad in found.bad_lines],
    )


def parsed(content: bytes, keys: tuple[str, ...] = KEYS) -> Result:
    """The same by the parsers alone."""
    texts: list[list[bytes]] = [[] for _ in keys]
    counts: list[list[int]] = [[] for _ in keys]
    bad_lines = []
    offset = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip(b" \t\n\r\x0b\f"):
            try:
                for column, of_key in enumerate(json_line.texts_of(line, keys)):
                    texts[column].extend(of_key)
                    counts[column].append(len(of_key))
            except json_line.Unusable as reason:
                bad_lines.append(f"file, line {number}, byte {offset}: {reason}: {line!r}")
        offset += len(line) + 1
    return texts, counts, bad_lines


STRINGS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["text", "title", "", "a" * 63, "é" * 40, "日" * 30]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRINGS | st.sampled_from([10**400, 1e999, -0.0]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)
TEXTS = STRINGS | st.lists(STRINGS, max_size=4)
RECORDS = st.tuples(
    st.fixed_dictionaries({"text": TEXTS, "title": TEXTS}),
    st.dictionaries(STRINGS, VALUES, max_size=2),
    st.dictionaries(STRINGS, VALUES, max_size=2),
).map(lambda parts: parts[1] | parts[0] | parts[2] | {"text": parts[0]["text"], "title": parts[0]["title"]})
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" \t,\r ", " :\t ")])


@settings(max_examples=150)
@given(st.lists(RECORDS, min_size=1, max_size=3), st.booleans(), SEPARATORS, st.booleans())
def test_what_python_writes(records: list[Any], ascii_only: bool, separators: tuple[str, str], ends: bool) -> None:
    lines = [json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode() for record in records]
    content = b"\n".join(lines) + (b"\n" if ends else b"")
    found = scanned(content)
    assert found == parsed(content)
    assert found[2] == []


PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'{}[]:,"\\ \t\r\n\x00\x01\x0b\x0c\x1f\x7f\x80\xbf\xc0\xc2\xe0\xed\xf0\xf4\xff-+.eE019uxn/'),
        *(
            b'"text"',
            b'"title"',
            b'"text":',
            b'{"text":"',
            b'"}',
            b'"a"',
            b'["a","b"]',
            b'{"text":"b"}',
            b"null",
            b"true",
            b"false",
        ),
        *(b"NaN", b"-Infinity", b"nul", b"1e5", b"-0.5", b"01", b"9" * 301, b"[" * 63, b"]" * 63, b"[" * 64, b"]" * 64),
        *(b"\\u", b"\\u00", b"\\u0041", b"\\u0000", b"\\ud800", b"\\udc00", b"\\uD83D\\uDE00", b"\\ud83d\\u0041", b"\\n", b"\\x"),
        *("é".encode(), "日".encode(), "\U0001f600".encode(), b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xe6\x97"),
        *(b"x" * 61, b"x" * 62, b"x" * 63, b"x" * 64, b"\xef\xbb\xbf"),
    ]
)


@settings(max_examples=120)
@given(st.lists(PIECES, max_size=30).map(b"".join))
@example(b'{"text":"' + b"x" * 63 + b"\xe6\x97" + b'","title":""}')
def test_anything(content: bytes) -> None:
    assert scanned(content) == parsed(content)


@settings(max_examples=120)
@given(st.lists(PIECES | st.binary(max_size=3), max_size=8).map(b"".join), st.integers(0, 70))
def test_anything_in_a_string(content: bytes, before: int) -> None:
    line = b'{"title": "t", "text": "' + b"x" * before + content + b'"}\n{"text": "", "title": "u"}'
    assert scanned(line) == parsed(line)
    key = b'{"' + b"x" * before + content + b'": "v", "text": "a", "title": "b"}\n'
    assert scanned(key) == parsed(key)


@settings(max_examples=120)
@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_anything_as_a_value(content: bytes) -> None:
    line = b'{"other": ' + content + b', "text": "a", "title": ' + content + b"}\n"
    assert scanned(line) == parsed(line)
    line = b'{"title": "b", "other": ' + content + b', "text": "a"}\n'
    assert scanned(line) == parsed(line)


@settings(max_examples=120)
@given(RECORDS, st.booleans(), st.integers(0, 10**6), st.integers(0, 3), PIECES)
def test_a_damaged_line(record: Any, ascii_only: bool, place: int, removed: int, inserted: bytes) -> None:
    line = json.dumps(record, ensure_ascii=ascii_only).encode()
    at = place % (len(line) + 1)
    content = line[:at] + inserted + line[at + removed :] + b"\n" + line
    assert scanned(content) == parsed(content)


UTF8_BOUNDARIES = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]


@pytest.mark.parametrize("before", range(60, 68))
def test_characters_across_blocks(before: int) -> None:
    text = "x" * before + "".join(map(chr, UTF8_BOUNDARIES)) * 10
    for ascii_only in (False, True):
        line = json.dumps({"text": text, "title": ""}, ensure_ascii=ascii_only).encode()
        assert scanned(line)[0][0] == [text.encode()]


def test_every_sequence_of_two_bytes_and_of_lead_and_next_byte() -> None:
    seconds = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    for last in (b"", b"\x80", b"\x80\x80"):
        lines = [b'{"text":"%c%c%s"}' % (first, second, last) for first in range(0x7F, 0x100) for second in seconds]
        content = b"\n".join(lines)
        assert scanned(content, ("text",)) == parsed(content, ("text",))


def test_ordinary_lines_need_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_line, "texts_of", None)
    record = {
        "id": -12.5e-3,
        "meta": {"text": "decoy", "list": [[], {}, [1, {"title": None}], True, False]},
        'k"\u00e9y\n': "\U0001f600",
        "text": ["one\ttwo", "", "\u65e5\u672c"],
        "score": float("nan"),
        "title": "",
    }
    for ascii_only in (False, True):
        line = json.dumps(record, ensure_ascii=ascii_only).encode()
        expected = [[b"one\ttwo", "\u65e5\u672c".encode()], []], [[2], [0]], []
        assert scanned(b"\r\n \n" + line + b" \r\n\n") == expected


@pytest.mark.parametrize("first", [0, 1])
def test_more_texts_than_room_at_first(first: int) -> None:
    many = [{"text": ["a"] * 500, "title": []}, {"text": [], "title": ["b", ""] * 300}]
    content = b"\n".join(
        json.dumps(record).encode() for record in many[first:] + many[:first] + [{"text": "", "title": ""}] * 500
    )
    assert scanned(content) == parsed(content)
    assert scanned(content.replace(b'"', b'"\\ud800', 1) + b"\nbad") == parsed(content.replace(b'"', b'"\\ud800', 1) + b"\nbad")
    duplicated = content.replace(b"}", b', "title": "c"}')
    assert scanned(duplicated) == parsed(duplicated)


def test_keys_outside_ascii_and_escaped() -> None:
    lines = [b'{"caf\\u00e9": "a", "": "b"}', '{"café": "c", "": "d"}'.encode(), b'{"cafe": "e", "": "f"}']
    texts, _, bad_lines = scanned(b"\n".join(lines), ("café", ""))
    assert texts == [[b"a", b"c"], [b"b", b"d"]]
    assert len(bad_lines) == 1


@pytest.mark.parametrize("depth", [62, 63, 64, 65, 66])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"text":', b"}]")])
def test_nesting(depth: int, opening: bytes, closing: bytes) -> None:
    for wrong in (b"", b"}", b"]"):
        line = b'{"other":' + opening * depth + b"1" + closing * depth + wrong + b',"text":"a","title":"b"}'
        assert scanned(line) == parsed(line)
    line = b'{"other":{"a":' + opening * depth + b"1" + closing * depth + b'],"text":"a","title":"b"}'
    assert scanned(line) == parsed(line)
    line = b'{"other":' + b'{"a":' + opening * depth + b"1" + closing * depth + b',1},"text":"a","title":"b"}'
    assert scanned(line) == parsed(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":"a","text":"b"}',
        b'{"text":"a","text":"b","title":"c"}',
        b'{"text":"a","title":"b","text":["c","d"]}',
        b'{"text":"a","te\\u0078t":"b","title":"c"}',
        b'{"text":null,"text":"b","title":"c"}',
        b'{"text":"a","title":"c","text":null}',
        b'{"text":"\\ud800\\uffff","title":"a"}',
        b'{"text":"\\ud800\\ue000","title":"a"}',
        b'{"text":"\\ud800\\ud800","title":"a"}',
        b'{"text":"\\udc00\\ud800","title":"a"}',
        b'{"text":"\\uD834\\uDD1E\\udBFF\\uDfff","title":"\\u00e9\\u07ff\\u0800\\ud7ff\\ue000\\uffff"}',
        b'{"text":"\\u00g0","title":"a"}',
        b'{"text":"\\u+123","title":"a"}',
        b'{"text":"a\xe6","title":"a"}',
        b'{"text":"a\xe6\\n","title":"a"}',
        b'{"text":"' + b"x" * 63 + b'\xe6","title":"a"}',
        b'{"text":"' + b"x" * 62 + b'\xe6\x97","title":"a"}',
        b'{"text":"' + b"x" * 63 + b'\xe6y","title":"a"}',
        b'{"text":"a\xe6\\n\x97\xa5","title":"a"}',
        b'{"text":"a","title":"b","n":' + b"9" * 4301 + b"}",
        b'{"text":"a","title":"b","n":-' + b"9" * 4300 + b"}",
        b'{"text":"a","title":"b"}\x00',
        b'{"text":"a","title":"b"}}',
        b'{"text":"a","title":"b",}',
        b'{"text":"a",,"title":"b"}',
        b'{"text":["a",],"title":"b"}',
        b'{"text":"a","title":"b"',
    ],
)
def test_rare_lines(line: bytes) -> None:
    assert scanned(line) == parsed(line)
    assert scanned(b"\n" + line + b"\n" + line) == parsed(b"\n" + line + b"\n" + line)


@pytest.mark.parametrize("good", [0, 1, 7, 40], ids="{} good lines between bad ones".format)
def test_a_chunk_of_mostly_bad_lines_is_read_by_the_parser(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line, bad = b'{"text": "a", "title": ["b", "c"]}\n', b"bad\n \n"
    content = (good * line + bad) * 60
    monkeypatch.setattr(json_batch, "_MOST_CALLS", 50)
    calls = count_calls(monkeypatch)
    assert scanned(content) == parsed(content)
    # Some calls more end because an array is full.
    assert 50 <= calls() < 60 if good < 9 else calls() > 60


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the calls of the compiled scan."""
    scanned_from: list[int] = []
    scan = json_batch.json_scan.scan

    def counted(data: Any, at: int, *arguments: Any) -> Any:
        scanned_from.append(at)
        return scan(data, at, *arguments)

    counted.__dict__.update(vars(scan))
    monkeypatch.setattr(json_batch.json_scan, "scan", counted)
    monkeypatch.setattr(json_batch.jit, "is_ready", lambda *arguments: True)
    return lambda: len(scanned_from)
