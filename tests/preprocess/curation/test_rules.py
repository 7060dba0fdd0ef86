"""Documents that rules remove are counted and named, and those that stay keep their lines, also after a kill."""

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_preprocess.curation.documents import document_texts
from lt_preprocess.curation.lengths import LengthRule
from lt_preprocess.curation.rules import Rules
from lt_preprocess.pipeline import removals, run, sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers import json_batch
from lt_preprocess.readers.byte_ranges import LocalFile
from lt_preprocess.readers.chunks import Lines
from lt_shared.console import NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.data.document_origins import origins

WriteLines = Callable[[Path, list[Any]], Path]
Planned = Callable[..., Plan]
Build = Callable[..., manifest.Dataset]


@pytest.mark.parametrize("rule", ["words", "words:", "words::", "pages:1:2", "words:9:3", "words:-1:", "words:1:2:3", "Words:1:"])
def test_malformed_limits_are_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="--keep-length"):
        LengthRule.parse(rule)


def test_limits_are_inclusive() -> None:
    lengths = np.array([0, 1, 2, 3, 4, 1000], np.int64)
    reasons = LengthRule.parse("words:2:3").removals(lengths)
    assert reasons == {
        0: ("too_short", "too_short: 0 words, --keep-length words:2:3"),
        1: ("too_short", "too_short: 1 words, --keep-length words:2:3"),
        4: ("too_long", "too_long: 4 words, --keep-length words:2:3"),
        5: ("too_long", "too_long: 1,000 words, --keep-length words:2:3"),
    }
    assert sorted(LengthRule.parse("bytes::999").removals(lengths)) == [5]


def rules(*lengths: str, **options: Any) -> Rules:
    return Rules(tuple(map(LengthRule.parse, lengths)), **options)


# "añb" has 3 characters and 4 bytes; "ab" and "-" are tokens of the demo's tokenizer.
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("bytes:4:", ["añb", "one two three"]),
        ("characters:3:", ["añb", "one two three"]),
        ("characters:4:", ["one two three"]),
        ("bytes::4", ["añb", "", "ab", "-"]),
        ("words:1:2", ["añb", "ab"]),
        ("tokens:1:1", ["ab", "-"]),
    ],
)
def test_units(
    rule: str, expected: list[str], tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, build: Build
) -> None:
    texts = ["añb", "one two three", "", "ab", "-"]
    file = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    dataset = build([file], demo_tokenizer, tmp_path / "out", rules=rules(rule))
    kept = write_lines(tmp_path / "kept.jsonl", [{"text": text} for text in expected])
    stock = build([kept], demo_tokenizer, tmp_path / "stock")
    assert files(dataset.prefix) == files(stock.prefix)


def files(prefix: str) -> list[bytes]:
    return [Path(f"{prefix}{ending}").read_bytes() for ending in (".bin", ".idx")]


def mixed_lines(path: Path) -> list[int]:
    """Write 400 lines: blank ones, bad ones, short and long documents. Returns the numbers of lines that stay, from 1."""
    stay = []
    with path.open("w", encoding="utf-8") as file:
        for number in range(1, 401):
            if number % 7 == 0:
                file.write("\n")
            elif number % 11 == 0:
                file.write('{"id": 1}\n')
            elif number % 3 == 0:
                file.write(json.dumps({"text": f"short {number}"}) + "\n")
            elif number % 5 == 0:
                file.write(json.dumps({"text": f"long {number} " + "word " * 50}) + "\n")
            else:
                file.write(json.dumps({"text": f"this is document {number} and it stays"}) + "\n")
                stay.append(number)
    return stay


def test_counts_examples_and_lines(
    tmp_path: Path, demo_tokenizer: Path, build: Build, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFile, "chunk_bytes", 1000)
    monkeypatch.setattr(removals, "EXAMPLES_PER_KIND", 10)
    stay = mixed_lines(tmp_path / "a.jsonl")
    options = {"rules": rules("words:4:", "tokens::30"), "on_error": "skip"}
    dataset = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", **options)
    numbers = [number for number in range(1, 401) if number % 7 and number % 11]
    counts = {
        "too_long": sum(number % 3 != 0 and number % 5 == 0 for number in numbers),
        "too_short": sum(number % 3 == 0 for number in numbers),
    }
    assert dataset.removed == counts
    assert (sidecar.read(dataset.prefix) or {})["counts"]["removed"] == counts
    assert manifest.describe(dataset.prefix) == dataclasses.replace(
        dataset, tokenizer=manifest.describe(dataset.prefix).tokenizer
    )
    table = origins.of_dataset(dataset.prefix)
    assert table is not None
    assert [place.line for place in table.locate(np.arange(dataset.documents or 0)) if place] == stay
    examples = [json.loads(line) for line in (tmp_path / "out_quarantine.jsonl").read_text().splitlines()]
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    for kind, divisor in (("too_short", 3), ("too_long", 5)):
        of_kind = [example for example in examples if example["reason"].startswith(kind)]
        expected = [number for number in numbers if number % divisor == 0 and (divisor == 3 or number % 3)][:10]
        assert [example["line"] for example in of_kind] == expected
        assert [example["raw"] for example in of_kind] == [lines[number - 1] for number in expected]
        offsets = [len("\n".join(lines[: number - 1])) + (number > 1) for number in expected]
        assert [example["offset"] for example in of_kind] == offsets
    assert sidecar.up_to_date(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", **options)) is not None
    other = {**options, "rules": rules("words:5:")}
    assert sidecar.up_to_date(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", **other)) is None


@pytest.mark.parametrize("chunk_bytes", [700, 1 << 20])
def test_a_part_counts_what_precedes_the_first_document_of_the_next_part(
    tmp_path: Path, demo_tokenizer: Path, planned: Planned, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(LocalFile, "chunk_bytes", chunk_bytes)
    stay = mixed_lines(tmp_path / "a.jsonl")
    options = {"rules": rules("words:4:"), "on_error": "quarantine", "max_shard_bytes": 1500}
    stay = sorted({*stay, *(number for number in range(1, 401) if number % 5 == 0 and number % 3 and number % 7 and number % 11)})
    parts = run.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", **options), 1)
    assert len(parts) > 2
    first = 0
    for index, part in enumerate(parts):
        last = first + (part.documents or 0)
        # A chunk that no document of the part precedes belongs to the part that is open.
        lines = range(stay[first - 1] + 1 if first else 1, 401 if last == len(stay) else stay[last])
        counts = (sidecar.read(part.prefix) or {})["counts"]
        records = [json.loads(line) for line in (tmp_path / f"out-part{index:05d}_quarantine.jsonl").read_text().splitlines()]
        if chunk_bytes > 1000:
            begin = stay[first] if first else 1
            short = [number for number in range(begin, lines.stop) if number % 7 and number % 11 and number % 3 == 0]
            bad = [number for number in range(begin, lines.stop) if number % 7 and number % 11 == 0]
            assert (part.removed or {}, counts["bad_lines"]) == ({"too_short": len(short)} if short else {}, len(bad))
            assert sorted(record["line"] for record in records) == sorted([*short, *bad])
        first = last
    assert sum((part.removed or {}).get("too_short", 0) for part in parts) == sum(
        number % 7 > 0 and number % 11 > 0 and number % 3 == 0 for number in range(1, 401)
    )


def test_an_interrupted_run_removes_the_same(
    tmp_path: Path, demo_tokenizer: Path, build: Build, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFile, "chunk_bytes", 1000)
    monkeypatch.setattr(run, "JOURNAL_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(run, "MAX_SYNC_SHARE", 1e9)
    mixed_lines(tmp_path / "a.jsonl")
    options = {"rules": rules("words:4:"), "on_error": "skip", "max_shard_bytes": 2000}
    whole = run.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "whole", **options), 1)
    assert len(whole) > 2
    real_take = run._Run._take
    for chunk_count in (1, 4, 9, 20):
        taken = iter(range(chunk_count))

        def take(self: run._Run, encoded: Any, taken: Iterator[int] = taken) -> None:
            if next(taken, None) is None:
                raise KeyboardInterrupt
            real_take(self, encoded)

        plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / f"cut{chunk_count}", **options)
        monkeypatch.setattr(run._Run, "_take", take)
        with pytest.raises(KeyboardInterrupt):
            run.build(plan, 2)
        monkeypatch.setattr(run._Run, "_take", real_take)
        resumed = run.build(plan, 2)
        assert [files(dataset.prefix) for dataset in resumed] == [files(dataset.prefix) for dataset in whole]
        assert [dataset.removed for dataset in resumed] == [dataset.removed for dataset in whole]
        for part in range(len(whole)):
            quarantines = [tmp_path / f"{name}-part{part:05d}_quarantine.jsonl" for name in ("whole", f"cut{chunk_count}")]
            assert len({path.read_text() if path.exists() else None for path in quarantines}) == 1


def test_without_rules_older_fingerprints_stay(tmp_path: Path, demo_tokenizer: Path, planned: Planned) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out")
    assert set(plan.options.to_record()) == {
        *("json_keys", "append_eod", "on_error", "special_tokens", "shard", "max_shard_bytes"),
    }


def test_evaluation_texts_count_by_their_content(tmp_path: Path, demo_tokenizer: Path, planned: Planned) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    fingerprints = []
    for name, content in (("one", "x"), ("two", "x"), ("two", "y")):
        (tmp_path / name).write_text(content)
        plan = planned(
            [tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "o", rules=Rules(evaluation_texts=(str(tmp_path / name),))
        )
        fingerprints.append(plan.fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    with pytest.raises(UsageError, match="standard input"):
        planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "o", rules=Rules(evaluation_texts=("-",)))


def test_a_run_that_removes_everything_says_why(
    tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, build: Build
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a b"}, {"text": "c"}])
    with pytest.raises(NoInput, match="every document was removed: 2 too_short"):
        build([file], demo_tokenizer, tmp_path / "out", rules=rules("words:3:"))


def test_the_text_of_a_document_joins_its_texts_and_keys() -> None:
    lines = Lines.of(b'{"a": ["x", "y"], "b": "z"}\n{"a": "", "b": "w"}\n')
    assert document_texts(json_batch.json_lines(lines, "", ("a", "b"))).to_list() == [b"x\ny\nz", b"w"]
    assert document_texts(json_batch.json_lines(lines, "", ("a",))).to_list() == [b"x\ny", b""]


def test_several_keys_lose_the_same_documents(
    tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, planned: Planned
) -> None:
    records = [{"a": "one two", "b": "three"}, {"a": "one", "b": "-"}, {"a": ["x", "y", "z"], "b": ""}]
    file = write_lines(tmp_path / "a.jsonl", records)
    made = run.build(planned([file], demo_tokenizer, tmp_path / "out", json_keys=("a", "b"), rules=rules("words:3:")), 1)
    assert [(dataset.documents, dataset.removed) for dataset in made] == [(2, {"too_short": 1})] * 2


@pytest.mark.parametrize("length", ["words:3:", "tokens:4:"])
def test_a_row_whose_fields_a_template_joined_is_an_example(
    tmp_path: Path, demo_tokenizer: Path, build: Build, length: str
) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["title", "body"], ["one", "two three four"], ["x", ""], ["", 'a,"b']])
    options = {"template": "{title?} {body?}", "rules": rules(length)}
    dataset = build([tmp_path / "a.csv"], demo_tokenizer, tmp_path / "out", **options)
    assert (dataset.documents, dataset.removed) == (1, {"too_short": 2})
    examples = [json.loads(line) for line in (tmp_path / "out_quarantine.jsonl").read_text().splitlines()]
    assert [(example["line"], json.loads(example["raw"])) for example in examples] == [
        (2, {"text": ["x "]}),
        (3, {"text": [' a,"b']}),
    ]
