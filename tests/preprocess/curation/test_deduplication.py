"""Duplicates across files: the documents that a direct computation removes, whatever the shards, workers and interruptions."""

import gzip
import itertools
import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lt_preprocess.curation import clusters, deduplication, duplicates, minhash, signatures
from lt_preprocess.curation.rules import Rules
from lt_preprocess.curation.signature_files import Compared, Method
from lt_preprocess.curation.words import words
from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.byte_ranges import LocalFile
from lt_preprocess.readers.slices import Slice
from lt_preprocess.texts import Texts
from lt_shared.console import BadConfig, BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.data.document_origins import origins

Build = Callable[..., manifest.Dataset]
Planned = Callable[..., Plan]
Run = Callable[..., subprocess.CompletedProcess[str]]


def letters() -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=6))


def near(text: str, share: float) -> str:
    return " ".join(word if random.random() > share else letters() for word in text.split(" "))


def planted_texts() -> list[str]:
    """300 texts, of them about a third exact or near copies of earlier ones, and chains of copies of copies."""
    random.seed(11)
    vocabulary = [letters() for _ in range(3000)]
    texts: list[str] = []
    for number in range(300):
        if number > 20 and number % 3 == 0:
            texts.append(near(random.choice(texts), random.choice([0, 0.005, 0.01, 0.03, 0.06])))
        elif number % 17 == 0:
            texts.append(random.choice(["", "too short", "a b c d", "Too short!"]))
        else:
            texts.append(" ".join(random.choices(vocabulary, k=random.randrange(5, 400))))
    return texts


def direct(texts: Sequence[str], method: Method) -> dict[int, tuple[int, str]]:
    """The first document of the cluster and the kind, for each removed document."""
    bands = minhash.bands(words(Texts.from_list([text.encode() for text in texts])))
    cluster = list(range(len(texts)))
    for one, other in itertools.combinations(range(len(texts)), 2):
        is_alike = texts[one] == texts[other]
        if method == "minhash":
            is_alike |= bool(((bands[one] == bands[other]) & (bands[one] != 0)).any())
        if is_alike and cluster[one] != cluster[other]:
            low, high = sorted((cluster[one], cluster[other]))
            cluster = [low if number == high else number for number in cluster]
    return {
        number: (first, "exact_duplicate" if texts[number] in texts[:number] else "near_duplicate")
        for number, first in enumerate(cluster)
        if first != number
    }


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return planted_texts()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFile, "chunk_bytes", 5000)


@pytest.fixture
def files(tmp_path: Path, texts: list[str]) -> list[Path]:
    """The texts in lines with blank and bad ones among them, in compressed lines, and in a table."""
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
    plain = [
        line + ("\n\n" if number % 9 == 0 else '\n{"id": 0}\n' if number % 31 == 0 else "\n") for number, line in enumerate(lines)
    ]
    (tmp_path / "1.jsonl").write_text("".join(plain[:120]), encoding="utf-8")
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress("".join(plain[120:200]).encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[200:]}), tmp_path / "3.parquet", row_group_size=30)
    return [tmp_path / name for name in ("1.jsonl", "2.jsonl.gz", "3.parquet")]


def positions(files: Sequence[Path], texts: Sequence[str]) -> list[tuple[int, int]]:
    """The input and the position of every document."""
    places = []
    for number, path in enumerate(files[:2]):
        content = path.read_bytes() if number == 0 else gzip.decompress(path.read_bytes())
        offset = 0
        for line in content.split(b"\n"):
            if line and b'"text"' in line:
                places.append((number, offset))
            offset += len(line) + 1
    return places + [(2, row) for row in range(len(texts) - 200)]


def dedup(files: Sequence[Path], prefix: Path, method: Method = "minhash", shard: Slice | None = None, workers: int = 2) -> Path:
    path, _ = deduplication.run([str(file) for file in files], str(prefix), method, Compared(), shard, workers, False)
    return Path(path)


def removed(path: Path) -> dict[tuple[int, int], tuple[tuple[int, int], str]]:
    _, header_bytes = duplicates.read_record(str(path))
    rows = np.frombuffer(path.read_bytes()[header_bytes:], np.int64).reshape(-1, 5).tolist()
    return {(row[0], row[1]): ((row[2], row[3]), duplicates.EXACT if row[4] else duplicates.NEAR) for row in rows}


@pytest.mark.parametrize("method", ["exact", "minhash"])
def test_the_documents_that_a_direct_computation_removes(
    method: Method, tmp_path: Path, files: list[Path], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dedup(files, tmp_path / "all", method)
    expected = direct(texts, method)
    assert len(expected) > (50 if method == "minhash" else 20)
    places = positions(files, texts)
    assert removed(path) == {places[number]: (places[first], kind) for number, (first, kind) in expected.items()}
    assert "6 lines without a document are not compared" in capsys.readouterr().err


def test_shards_workers_and_partitions_change_nothing(tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = removed(dedup(files, tmp_path / "whole", workers=1))
    for count in (2, 5):
        shards = [dedup(files, tmp_path / f"part{count}", shard=Slice(index, count), workers=3) for index in range(count)]
        random.shuffle(shards)
        assert removed(dedup(shards, tmp_path / f"joined{count}")) == whole
    monkeypatch.setattr(clusters, "PARTITION_DOCUMENTS", 20)
    monkeypatch.setattr("lt_preprocess.curation.signature_files.DOCUMENTS_AT_ONCE", 7)
    assert removed(dedup(files, tmp_path / "partitions")) == whole


def test_shards_of_two_corpora(tmp_path: Path, files: list[Path]) -> None:
    whole = removed(dedup(files, tmp_path / "whole"))
    old = [dedup(files[:1], tmp_path / "old", shard=Slice(index, 2)) for index in range(2)]
    new = [dedup(files[1:], tmp_path / "new", shard=Slice(index, 2)) for index in range(2)]
    assert removed(dedup([*old, *new], tmp_path / "all")) == whole


def test_a_missing_or_repeated_shard_is_refused(tmp_path: Path, files: list[Path]) -> None:
    shards = [dedup(files, tmp_path / "part", shard=Slice(index, 3)) for index in range(3)]
    with pytest.raises(BadConfig, match="shard 1 of 3 is missing"):
        dedup([shards[0], shards[2]], tmp_path / "out")
    with pytest.raises(BadConfig, match="a shard is given twice"):
        dedup([*shards, shards[0]], tmp_path / "out")
    with pytest.raises(UsageError, match="cannot be divided"):
        dedup(shards, tmp_path / "out", shard=Slice(0, 2))
    exact = dedup(files[:1], tmp_path / "exact", "exact").with_suffix(".signatures")
    with pytest.raises(BadConfig, match="method is exact"):
        dedup([*shards, exact], tmp_path / "out")


def test_earlier_signatures_come_first(tmp_path: Path, files: list[Path]) -> None:
    whole = removed(dedup(files, tmp_path / "whole"))
    dedup(files[:2], tmp_path / "old")
    assert removed(dedup([tmp_path / "old.signatures", files[2]], tmp_path / "new")) == whole


def test_an_interrupted_pass_resumes(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signatures, "JOURNAL_INTERVAL_SECONDS", 0.0)
    dedup(files, tmp_path / "whole")
    expected = [(tmp_path / f"whole.{ending}").read_bytes() for ending in ("signatures", "duplicates")]
    real_records = signatures._records
    for cut in (1, 5, 12, 20):
        computed: Iterator[int] = iter(range(cut))

        def records(chunk: Any, computed: Iterator[int] = computed, **options: Any) -> Any:
            if next(computed, None) is None:
                raise KeyboardInterrupt
            return real_records(chunk, **options)

        monkeypatch.setattr(signatures, "_records", records)
        with pytest.raises(KeyboardInterrupt):
            dedup(files, tmp_path / f"cut{cut}", workers=1)
        monkeypatch.setattr(signatures, "_records", real_records)
        dedup(files, tmp_path / f"cut{cut}", workers=2)
        made = [(tmp_path / f"cut{cut}.{ending}").read_bytes() for ending in ("signatures", "duplicates")]
        assert made == expected
        assert "resuming" in capsys.readouterr().err
        assert not list(tmp_path.glob(".*"))


def test_repeated_commands_are_up_to_date(tmp_path: Path, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    dedup(files, tmp_path / "a")
    capsys.readouterr()
    dedup(files, tmp_path / "a")
    assert capsys.readouterr().err.count("up to date") == 2
    files[0].write_text('{"text": "changed"}\n')
    path = dedup(files, tmp_path / "a")
    assert "up to date" not in capsys.readouterr().err
    assert duplicates.read_record(str(path))[0]["documents"] == 181


@pytest.mark.parametrize("shards", [1, 3])
def test_tokenizing_leaves_them_out(
    shards: int, tmp_path: Path, files: list[Path], texts: list[str], demo_tokenizer: Path, planned: Planned, build: Build
) -> None:
    path = dedup(files, tmp_path / "a")
    expected = direct(texts, "minhash")
    rules = Rules(duplicates=str(path))
    sidecars = []
    for index in range(shards):
        shard = Slice(index, shards) if shards > 1 else None
        plan = planned(files, demo_tokenizer, tmp_path / "out", rules=rules, on_error="skip", shard=shard)
        sidecars += runs.build(plan, 2)
    kept = [text for number, text in enumerate(texts) if number not in expected]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
    stock = build([tmp_path / "kept.jsonl"], demo_tokenizer, tmp_path / "stock")
    tokens = b"".join(Path(f"{dataset.prefix}.bin").read_bytes() for dataset in sidecars)
    assert tokens == Path(f"{stock.prefix}.bin").read_bytes()
    counts = {"exact_duplicate": 0, "near_duplicate": 0}
    for dataset in sidecars:
        for kind, count in (dataset.removed or {}).items():
            counts[kind] += count
    kinds = [kind for _, kind in expected.values()]
    assert counts == {kind: kinds.count(kind) for kind in counts}
    places = []
    for dataset in sidecars:
        table = origins.of_dataset(dataset.prefix)
        assert table is not None
        places += [place for place in table.locate(np.arange(dataset.documents or 0)) if place]
    rows = [place.line - 1 for place in places if place.kind == "row"]
    assert rows == [number - 200 for number in range(200, 300) if number not in expected]


def test_examples_name_the_document_that_stays(tmp_path: Path, demo_tokenizer: Path, build: Build) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n')
    path = dedup([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "d", "exact")
    # The second file alone: its duplicate of the first file is left out, too.
    dataset = build([tmp_path / "b.jsonl"], demo_tokenizer, tmp_path / "out", rules=Rules(duplicates=str(path)))
    assert (dataset.documents, dataset.removed) == (1, {"exact_duplicate": 1})
    [example] = [json.loads(line) for line in (tmp_path / "out_quarantine.jsonl").read_text().splitlines()]
    assert (example["line"], example["offset"]) == (1, 0)
    assert example["reason"] == f"exact_duplicate: of {tmp_path / 'a.jsonl'} at 16"


def test_an_input_that_is_given_twice_loses_its_second_copy(tmp_path: Path, demo_tokenizer: Path, planned: Planned) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    twice = [tmp_path / "a.jsonl"] * 2
    path = dedup(twice, tmp_path / "d", "exact")
    rules = Rules(duplicates=str(path))
    [dataset] = runs.build(planned(twice, demo_tokenizer, tmp_path / "out", rules=rules), 1)
    assert (dataset.documents, dataset.removed) == (2, {"exact_duplicate": 2})
    with pytest.raises(BadConfig, match="was not among the inputs"):
        planned([*twice, tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", rules=rules)


def test_a_list_that_does_not_fit_is_refused(tmp_path: Path, files: list[Path], demo_tokenizer: Path, planned: Planned) -> None:
    path = dedup(files, tmp_path / "d")
    rules = Rules(duplicates=str(path))

    def plan(paths: Sequence[Path], **options: Any) -> Plan:
        return planned(list(paths), demo_tokenizer, tmp_path / "out", rules=rules, **options)

    assert plan(files[::-1]).fingerprint != planned(files[::-1], demo_tokenizer, tmp_path / "out").fingerprint
    (tmp_path / "other.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(BadConfig, match=r"other.jsonl: was not among the inputs when .*d.duplicates was made"):
        plan([tmp_path / "other.jsonl"])
    with pytest.raises(BadConfig, match=r"made with --json-keys text, this run is with --json-keys id$"):
        plan(files, json_keys=("id",))
    content = path.read_bytes()
    path.write_bytes(content[:-8] + b"\1" * 8)
    with pytest.raises(BadData, match="its checksum differs"):
        plan(files)
    path.write_bytes(content[:-1])
    with pytest.raises(BadData, match="damaged"):
        plan(files)
    path.write_bytes(content.replace(b'"template"', b'"templato"'))
    with pytest.raises(BadData, match="no field 'template'"):
        plan(files)
    path.write_bytes(content)
    files[0].write_text('{"text": "x"}\n')
    with pytest.raises(BadConfig, match=r"1.jsonl: has changed since"):
        plan(files)


def test_a_template_makes_the_text_that_is_compared(
    tmp_path: Path, demo_tokenizer: Path, planned: Planned, write_lines: Callable[[Path, list[Any]], Path]
) -> None:
    records = [{"a": "x", "b": "y"}, {"a": "x", "b": "z"}, {"a": "x", "b": "y"}, {"a": ["x", "y"], "b": "y"}]
    file = write_lines(tmp_path / "a.jsonl", records)
    compared = Compared(template="{a} {b}")
    path, record = deduplication.run([str(file)], str(tmp_path / "d"), "exact", compared, None, 1, False)
    assert (record["documents"], record["removed"]) == (3, {"exact_duplicate": 1})
    options = {"rules": Rules(duplicates=path), "on_error": "skip"}
    [dataset] = runs.build(planned([file], demo_tokenizer, tmp_path / "out", template="{a} {b}", **options), 1)
    assert (dataset.documents, dataset.removed) == (2, {"exact_duplicate": 1})
    with pytest.raises(BadConfig, match=r"made with --template {a} {b}, this run is with --template {b} {a}$"):
        planned([file], demo_tokenizer, tmp_path / "out", template="{b} {a}", **options)
    with pytest.raises(BadConfig, match=r"made with --template {a} {b}, this run is without --template$"):
        planned([file], demo_tokenizer, tmp_path / "out", **options)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(UsageError, match="standard input: cannot be read again"):
        dedup([Path("-")], tmp_path / "out")
    with pytest.raises(NoInput):
        dedup([tmp_path / "missing.jsonl"], tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(NoInput, match="no documents"):
        dedup([tmp_path / "empty.jsonl"], tmp_path / "out")
    path = dedup(files, tmp_path / "d").with_suffix(".signatures")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"shard"', b'"share"'))
    with pytest.raises(BadData, match="no field 'shard'"):
        dedup([path], tmp_path / "out")
    path.write_bytes(content[:-1])
    with pytest.raises(BadData, match="damaged signatures"):
        dedup([path], tmp_path / "out")


def test_the_command(tmp_path: Path, files: list[Path], run: Run) -> None:
    done = run("dedup", *files, "--method", "minhash", "-o", tmp_path / "d")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["kind"] == "duplicates" and lines[0]["path"] == str(tmp_path / "d.duplicates")
    assert lines[0]["documents"] == 300 and lines[0]["removed"]["near_duplicate"] > 20
    assert lines[1] == {"v": 1, "kind": "end", "count": 1}
    for index in range(2):
        done = run("dedup", *files, "--method", "minhash", "--shard", f"{index}/2", "-o", tmp_path / "s", "--plain")
        assert done.stdout == f"{tmp_path}/s-{index:05d}-of-00002.signatures\n"
    done = run("dedup", str(tmp_path / "s-*.signatures"), "-o", tmp_path / "s")
    assert json.loads(done.stdout.splitlines()[0])["removed"] == lines[0]["removed"]


def test_signatures_are_no_list_of_duplicates(tmp_path: Path, demo_tokenizer: Path, write_lines: Any, run: Run) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    assert run("dedup", file, "-o", tmp_path / "d").returncode == 0
    outcome = run(file, "--tokenizer", demo_tokenizer, "--duplicates", tmp_path / "d.signatures", "-o", tmp_path / "out")
    assert outcome.returncode == 78
    assert f"{tmp_path}/d.signatures: signatures of documents, not a list of duplicates" in outcome.stderr
    assert f"lt-preprocess dedup {tmp_path}/d.signatures -o PREFIX makes it" in outcome.stderr
