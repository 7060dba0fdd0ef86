"""Templates, BOS, cuts, limits, infilling and the dtype: the same result for any workers, shards and resumed runs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer

from lt_preprocess.curation.lengths import LengthRule
from lt_preprocess.curation.rules import Rules
from lt_preprocess.datasets import decoding, retokenization, source_places, statistics, verification
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline import sidecar
from lt_preprocess.pipeline.plan import Options, Plan
from lt_preprocess.readers import chunks
from lt_preprocess.readers.slices import Slice
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]
Planned = Callable[..., Plan]

EOD, BOS = 2047, 2048
COUNT = 120
OPTIONS: dict[str, dict[str, Any]] = {
    "bos": {"bos": BOS},
    "template": {"template": r"{title?}\n{meta.text}"},
    "cut": {"max_document_tokens": 7, "bos": BOS},
    "cut without ends": {"max_document_tokens": 7, "append_eod": False},
    "documents": {"limit_documents": 70},
    "tokens": {"limit_tokens": 9000},
    "cut and tokens": {"limit_tokens": 9000, "max_document_tokens": 9},
    "infilling": {"fim": FillInTheMiddle(0.5)},
    "int32": {"dtype": "int32"},
    "nested": {"json_keys": ("meta.text",)},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Path) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    library = ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    library.add_special_tokens(["<|endoftext|>", "<s>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>"])
    library.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<|endoftext|>"}')
    return directory


@pytest.fixture(scope="module")
def corpus_lines(tmp_path_factory: pytest.TempPathFactory, texts: list[str], write_lines: WriteLines) -> Path:
    """Documents, some in several sequences or without text, and bad lines among them."""
    directory = tmp_path_factory.mktemp("lines")
    records: list[Any] = [
        {"text": text, "title": f"title {number}" if number % 3 else None, "meta": {"text": text[:200]}}
        for number, text in enumerate(texts[:COUNT])
    ]
    records[17]["text"] = [records[17]["text"][:40], "", "and more"]
    records[18]["text"] = records[18]["meta"]["text"] = ""
    path = write_lines(directory / "a.jsonl", records)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:50], b"bad\n", b"\n", *lines[50:], b"bad at the end\n"]))
    return path


@pytest.fixture
def build_dataset(planned: Planned, tokenizer: Path, corpus_lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`made(name, workers=1, **options)`: the dataset that a run with these options makes of small chunks."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 1 << 12)

    def make(name: str, workers: int = 1, path: Path = corpus_lines, **options: Any) -> Dataset:
        run_plan = _plan(planned, tokenizer, path, tmp_path / name, options)
        [dataset] = runs.build(run_plan, workers)
        return dataset

    return make


def _plan(planned: Planned, tokenizer: Path, path: Path, prefix: Path, options: dict[str, Any]) -> Plan:
    return planned([path], tokenizer, prefix, **{"append_eod": True, "on_error": "skip"} | options)


def content(dataset: Dataset) -> tuple[bytes, bytes]:
    return Path(f"{dataset.prefix}.bin").read_bytes(), Path(f"{dataset.prefix}.idx").read_bytes()


def counts(dataset: Dataset) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads(Path(f"{dataset.prefix}.json").read_bytes())["counts"]
    return counts


@pytest.mark.parametrize("name", OPTIONS)
def test_workers_chunks_and_checks(
    build_dataset: Callable[..., Dataset], name: str, tmp_path: Path, corpus_lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of workers and the bounds of chunks change nothing; the sources give the same dataset again."""
    first = build_dataset("one", **OPTIONS[name])
    assert content(build_dataset("three", 3, **OPTIONS[name])) == content(first)
    monkeypatch.undo()
    large = build_dataset("large", **OPTIONS[name])
    assert (content(large), counts(large)) == (content(first), counts(first))
    described = manifest.describe(first.prefix)
    assert retokenization.differences(described, None, 10_000) == []
    assert verification.verify(described).findings == []
    options = statistics.read(described, None, 1).to_record()["options"]
    assert {key: options[key] for key in OPTIONS[name] if key not in ("fim", "json_keys")} == {
        key: value for key, value in OPTIONS[name].items() if key not in ("fim", "json_keys")
    }
    # Every document knows its line, also behind lines without documents.
    assert first.documents is not None
    [place] = source_places.records(first.prefix, str(first.documents - 1))
    if "tokens" not in name:
        assert place["line"] == (72 if name == "documents" else COUNT + 2)


@pytest.mark.parametrize("name", ["template", "cut", "documents", "cut and tokens", "infilling"])
def test_a_resumed_run(
    planned: Planned,
    tokenizer: Path,
    corpus_lines: Path,
    tmp_path: Path,
    build_dataset: Callable[..., Dataset],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that failed on the way writes the same bytes when it is repeated; one with other options starts again."""
    whole = build_dataset("whole", **OPTIONS[name])
    monkeypatch.setattr(runs, "JOURNAL_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(runs, "MAX_SYNC_SHARE", 1.0)
    run_plan = _plan(planned, tokenizer, corpus_lines, tmp_path / "resumed", OPTIONS[name])
    take, count = runs._Run._take, 0

    def fail(self: Any, encoded: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        take(self, encoded)

    monkeypatch.setattr(runs._Run, "_take", fail)
    with pytest.raises(KeyboardInterrupt):
        runs.build(run_plan, 2)
    monkeypatch.setattr(runs._Run, "_take", take)
    [resumed] = runs.build(run_plan, 1)
    assert (content(resumed), counts(resumed)) == (content(whole), counts(whole))
    assert sidecar.up_to_date(run_plan) is not None
    assert sidecar.up_to_date(_plan(planned, tokenizer, corpus_lines, tmp_path / "resumed", {"bos": 5})) is None


@pytest.mark.parametrize("name", ["template", "cut", "infilling", "nested"])
def test_shards_in_order_are_the_whole(build_dataset: Callable[..., Dataset], name: str) -> None:
    whole = build_dataset("whole", **OPTIONS[name])
    shards = [build_dataset("shards", **OPTIONS[name], shard=Slice(number, 3)) for number in range(3)]
    assert b"".join(content(shard)[0] for shard in shards) == content(whole)[0]
    assert sum(shard.documents or 0 for shard in shards) == whole.documents


@pytest.mark.parametrize("name", ["cut", "tokens"])
def test_parts(
    build_dataset: Callable[..., Dataset], planned: Planned, tokenizer: Path, corpus_lines: Path, tmp_path: Path, name: str
) -> None:
    whole = build_dataset("whole", **OPTIONS[name])
    options = OPTIONS[name] | {"max_shard_bytes": 1000}
    parts = runs.build(_plan(planned, tokenizer, corpus_lines, tmp_path / "parts", options), 2)
    assert len(parts) > 2
    assert b"".join(content(part)[0] for part in parts) == content(whole)[0]


def test_every_document_begins_and_ends(build_dataset: Callable[..., Dataset]) -> None:
    plain, framed = build_dataset("plain"), build_dataset("framed", bos=BOS)
    without, reader = indexed_dataset.Reader(plain.prefix), indexed_dataset.Reader(framed.prefix)
    for number in range(without.documents):
        document = without.document(number).tolist()
        assert reader.document(number).tolist() == ([BOS, *document] if document else [])
    assert list(decoding.texts(manifest.describe(framed.prefix))) == list(decoding.texts(manifest.describe(plain.prefix)))


def test_cut_documents(build_dataset: Callable[..., Dataset]) -> None:
    """None is longer than the limit, all have their ends, and together they have the tokens of the text in order."""
    plain, cut = build_dataset("plain"), build_dataset("cut", **OPTIONS["cut"])
    tokens = np.fromfile(f"{cut.prefix}.bin", np.uint16)
    text = np.fromfile(f"{plain.prefix}.bin", np.uint16)
    assert tokens[(tokens != BOS) & (tokens != EOD)].tolist() == text[text != EOD].tolist()
    reader = indexed_dataset.Reader(cut.prefix)
    documents = [reader.document(number).tolist() for number in range(reader.documents)]
    assert max(map(len, documents)) == 7
    assert all(document[0] == BOS and document[-1] == EOD for document in documents if document)
    lines = [record["line"] for record in source_places.records(cut.prefix, None)]
    assert lines == sorted(lines)
    assert len(set(lines)) == COUNT


def test_a_limit_of_documents(build_dataset: Callable[..., Dataset]) -> None:
    """The first documents, and the bad lines between them; lines behind the last are not looked at."""
    whole = build_dataset("whole")
    for limit in (1, 50, 51, COUNT - 1, COUNT, COUNT + 1):
        limited = build_dataset(f"limited{limit}", limit_documents=limit)
        assert limited.documents == min(limit, COUNT)
        assert content(whole)[0].startswith(content(limited)[0])
        # The bad line is the 51st, the other one the last.
        assert counts(limited)["bad_lines"] == (limit > 50) + (limit > COUNT)


def test_a_limit_of_tokens(build_dataset: Callable[..., Dataset]) -> None:
    whole = build_dataset("whole")
    reader = indexed_dataset.Reader(whole.prefix)
    ends = np.cumsum([len(reader.document(number)) for number in range(30)]).tolist()
    for limit in (ends[0], ends[3] - 1, ends[3], ends[3] + 1, ends[29]):
        limited = build_dataset(f"limited{limit}", limit_tokens=limit)
        assert limited.tokens == max(end for end in ends if end <= limit)
        assert content(whole)[0].startswith(content(limited)[0])


def test_a_limit_counts_documents_that_stay(build_dataset: Callable[..., Dataset], corpus_lines: Path) -> None:
    """Documents that a rule removes behind the last one do not count, whatever the bounds of chunks are."""
    rules = Rules(lengths=(LengthRule("characters", 800, None),))
    stay = [len("".join(texts)) >= 800 for texts in _texts_of_lines(corpus_lines)]
    for limit in (1, 5, 20):
        limited = build_dataset(f"limited{limit}", rules=rules, limit_documents=limit)
        last = int(np.flatnonzero(np.cumsum(stay) == limit)[0])
        assert limited.documents == limit
        if last + 1 > limit:
            assert not list(retokenization.differences(manifest.describe(limited.prefix), None, 10))
        assert counts(limited).get("removed", {}).get("too_short", 0) == last + 1 - limit


def _texts_of_lines(path: Path) -> list[list[str]]:
    records = [json.loads(line)["text"] for line in path.read_text().splitlines() if line.startswith("{")]
    return [text if isinstance(text, list) else [text] for text in records]


def test_a_list_fills_no_field(build_dataset: Callable[..., Dataset]) -> None:
    """The 18th document has a list under the key."""
    assert counts(build_dataset("list", template="{text}"))["bad_lines"] == 3
    assert counts(build_dataset("one", template="{meta.text}"))["bad_lines"] == 2


def test_a_document_without_its_beginning_is_found(build_dataset: Callable[..., Dataset]) -> None:
    dataset = build_dataset("framed", bos=BOS)
    tokens = np.memmap(f"{dataset.prefix}.bin", np.uint16, "r+")
    second = int(np.flatnonzero(tokens == BOS)[1])
    tokens[second] = 7
    tokens.flush()
    messages = [str(finding) for finding in verification.verify(manifest.describe(dataset.prefix)).findings]
    assert any("no beginning of document: document 1 begins with 7, not with 2048" in message for message in messages)


def test_options_that_are_off_change_no_fingerprint() -> None:
    """Datasets and journals of earlier versions stay valid."""
    assert set(Options().to_record()) == {*("json_keys", "append_eod", "on_error", "special_tokens", "shard", "max_shard_bytes")}


def test_optional_fields_are_counted(build_dataset: Callable[..., Dataset], capsys: pytest.CaptureFixture[str]) -> None:
    dataset = build_dataset("template", **OPTIONS["template"])
    assert counts(dataset)["empty_fields"] == {"title": COUNT // 3}
    assert f"{{title?}}: empty, null or missing in {COUNT // 3} of {COUNT} documents" in capsys.readouterr().err
    first = next(decoding.texts(manifest.describe(dataset.prefix), None, 0, 2))
    assert isinstance(first, str)
    assert first.startswith("\n")


def test_command_lines(run: Run, tmp_path: Path, tokenizer: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "one two three four five"}, {"text": "six"}])

    def outcome(*options: str, files: Path = tokenizer) -> tuple[int, str]:
        result = run(tmp_path / "a.jsonl", "--tokenizer", files, "-o", tmp_path / "out", "--force", *options)
        return result.returncode, result.stderr

    code, said = outcome("--append-eod", "--prepend-bos", "--fim-rate", "0.5", "--fim-seed", "3", "--limit-documents", "1k")
    assert code == 0, said
    assert "every document begins with <s> (2048)" in said
    assert "fill in the middle with <fim_prefix> (2049), <fim_middle> (2050), <fim_suffix> (2051)" in said
    for options, message in (
        (("--bos-token", "<s>"), "begins no document without --prepend-bos"),
        (("--prepend-bos", "--bos-token", "<x>"), "--bos-token <x>: not a special token of this tokenizer"),
        (("--template", "{a}", "--json-keys", "b"), "--template and --json-keys both say where the text is"),
        (("--fim-prefix-token", "<s>"), "--fim-prefix-token has no effect without --fim-rate"),
        (("--fim-seed", "3"), "--fim-seed has no effect without --fim-rate"),
        (("--fim-spm-rate", "0"), "--fim-spm-rate has no effect without --fim-rate"),
        (("--fim-rate", "1", "--fim-prefix-token", "<s>"), "--fim-middle-token is missing"),
        (("--max-document-tokens", "2", "--append-eod", "--prepend-bos"), "leaves no place for text"),
        (("--max-document-tokens", "9", "--fim-rate", "1"), "a cut would part the middle"),
        (("--max-document-tokens", "9", "--json-keys", "a", "--json-keys", "b"), "their documents would not be the same"),
        (("--limit-tokens", "0"), "'0' is no number such as 1000"),
        (("--limit-tokens", "2"), "no document within --limit-tokens 2"),
    ):
        code, said = outcome(*options)
        assert code in (2, 66, 78), said
        assert message in said
    info = run("info", tmp_path / "out_text_document")
    assert "options     append_eod, bos 2048, limit_documents 1000, fim" in info.stdout
