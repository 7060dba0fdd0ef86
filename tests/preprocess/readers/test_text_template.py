"""Texts made of several fields, and fields in objects."""

import json
from typing import Any

import pytest

from lt_preprocess.readers import text_template
from lt_preprocess.readers.jsonl import MemoryChunk
from lt_shared.console import UsageError
from lt_shared.data.document_origins import key_paths


@pytest.mark.parametrize(
    ("template", "parts", "fields"),
    [
        ("{a}", (0,), {"a": False}),
        (r"{a?}\n\t{b.c}{a?}", (0, b"\n", b"\t", 1, 0), {"a": True, "b.c": False}),
        ("{{x}} {a} \u00e9", (b"{", b"x", b"}", b" ", 0, b" \xc3\xa9"), {"a": False}),
        (r"{a\?}{b\??}\\\{", (0, 1, b"\\", b"{"), {"a?": False, "b?": True}),
        (r"{a\.b}", (0,), {r"a\.b": False}),
        (r"{a\}b}", (0,), {"a}b": False}),
        ("{a b-c}\n", (0, b"\n"), {"a b-c": False}),
    ],
)
def test_templates(template: str, parts: tuple[Any, ...], fields: dict[str, bool]) -> None:
    parsed = text_template.parse(template)
    assert (parsed.parts, dict(zip(parsed.fields, parsed.is_optional, strict=True))) == (parts, fields)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("text", "has no field"),
        ("{{text}}", "has no field"),
        ("{text", "'{' at character 1"),
        ("{a} }", "'}' at character 5"),
        (r"{a}\x", r"'\\\\x' at character 4"),
        ("{}", "a field without a name"),
        ("{?}", "a field without a name"),
        ("{a}{a?}", "optional in one place and not in another"),
        ("{a}\\", "at character 4"),
    ],
)
def test_malformed_templates(template: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        text_template.parse(template)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a.b", "the key itself counts first"),
        ("c.b", "deep"),
        ("c.d.e", "deeper"),
        (r"c.x\.y", "a dot in a key"),
        (r"c.z\\", "a backslash in a key"),
        (r"a\.b", "the key itself counts first"),
        ("c.d", {"e": "deeper"}),
        ("c.missing", key_paths.MISSING),
        ("c.b.deeper", key_paths.MISSING),
        ("missing", key_paths.MISSING),
        ("", key_paths.MISSING),
        (".", "empty"),
    ],
)
def test_keys_and_paths(key: str, value: Any) -> None:
    record = {
        "a.b": "the key itself counts first",
        "a": {"b": "not this"},
        "c": {"b": "deep", "d": {"e": "deeper"}, "x.y": "a dot in a key", "z\\": "a backslash in a key"},
    }
    if value == "empty":
        record = {"": {"": "empty"}}
    assert key_paths.value_of(record, key) == value


def test_json_lines_are_read_by_paths_and_optional_fields() -> None:
    records = [
        {"title": "A", "m": {"t": "one"}, "m.t": "first"},
        {"title": None, "m": {"t": "two"}},
        {"m": {"t": ""}, "title": ""},
        {"m": {"u": "x"}, "title": "B"},
        {"m": {"t": None}, "title": "C"},
        {"m": {"t": "three"}, "title": 5},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    batch = MemoryChunk.of("file", lines).batch(text_template.parse("{title?}{m.t}").json_keys)
    title, text = batch.columns
    assert (title.texts.to_list(), title.texts_per_document.tolist()) == ([b"A"], [1, 0, 0])
    assert (text.texts.to_list(), text.texts_per_document.tolist()) == ([b"first", b"two"], [1, 1, 0])
    assert [(line.line, line.reason) for line in batch.bad_lines] == [
        (4, "no key 'm.t', it has 'm', 'title'"),
        (5, "'m.t' is null, expected a string or a list of strings"),
        (6, "'title' is a number, expected a string or a list of strings"),
    ]


def test_lines_with_paths_are_those_that_the_scan_reads() -> None:
    """Without objects in the records, paths or not change nothing: documents, blank and bad lines, numbers and offsets."""
    lines = b'{"a.b": "x", "c": ["1", "", "2"]}\n\n  \nbad\n{"a.b": "", "c": "3"}\n'
    lines += b'{"c": "4"}\n{"a.b": "\xff", "c": ""}\n{"a.b":"y","c":"5"}'
    renamed = lines.replace(b'"a.b"', b'"ab"')
    by_path = MemoryChunk.of("file", lines).batch(("a.b", "c"))
    by_scan = MemoryChunk.of("file", renamed).batch(("ab", "c"))
    for one, other in zip(by_path.columns, by_scan.columns, strict=True):
        assert one.texts.to_list() == other.texts.to_list()
        assert one.texts_per_document.tolist() == other.texts_per_document.tolist()
    assert by_path.lines[1:] == by_scan.lines[1:]
    assert [line.line for line in by_path.bad_lines] == [line.line for line in by_scan.bad_lines] == [4, 6, 7]
    assert [lines[line.offset :].split(b"\n")[0] for line in by_path.bad_lines] == [line.raw for line in by_path.bad_lines]
    empty = MemoryChunk.of("file", b"\n").batch(("a.b",))
    assert (empty.lines.total, len(empty.columns[0].texts_per_document)) == (1, 0)
