"""`verify --deep` tokenizes a sample of the source again, also of merged datasets, and finds what is not of the source."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_preprocess.datasets import merge, provenance, retokenization
from lt_shared.console import NoInput
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]

RECORDS = [{"text": text} for text in ("Hello world", "", ["first", "", "second"], "<|endoftext|>", "a b c", "end")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, run: Run, demo_tokenizer: Path, write_lines: WriteLines) -> Path:
    """Two files, tokenized together."""
    directory = tmp_path_factory.mktemp("deep")
    files = [write_lines(directory / "a.jsonl", RECORDS), write_lines(directory / "b.jsonl", RECORDS * 2)]
    result = run(*files, "--tokenizer", demo_tokenizer, "--append-eod", "-o", directory / "whole")
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture
def prefix(made: Path, tmp_path: Path) -> str:
    """A copy of the dataset, to be damaged."""
    for end in (".bin", ".idx", ".json"):
        (tmp_path / f"whole{end}").write_bytes((made / f"whole_text_document{end}").read_bytes())
    return str(tmp_path / "whole")


def differences(prefix: str, sample: int = 100) -> list[str]:
    return retokenization.differences(manifest.describe(prefix), None, sample)


def change_sidecar(prefix: str, **changes: Any) -> None:
    path = Path(f"{prefix}.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


def test_a_dataset_is_what_its_sources_give(prefix: str) -> None:
    assert differences(prefix) == []
    assert differences(prefix, sample=1) == []


def test_a_changed_token(prefix: str) -> None:
    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r+")
    tokens[0] += 1
    tokens.flush()
    [found] = differences(prefix, 10_000)
    assert found.startswith("document 0 (")
    assert f"token 0 is {tokens[0]}, its text gives {tokens[0] - 1}" in found


def test_lost_documents(prefix: str) -> None:
    described = manifest.describe(prefix)
    reader = indexed_dataset.Reader(prefix)
    documents = [reader.document(number).copy() for number in range(reader.documents)]
    with indexed_dataset.Writer(prefix, np.uint16) as writer:
        for tokens in documents[:-1]:
            writer.append_document(tokens)
        writer.publish()
    found = retokenization.differences(described, None, 10_000)
    assert found[0] == "17 documents, its sources hold 18"
    assert any("1 sequences, its text gives" in message for message in found[1:])


def test_a_changed_source(prefix: str) -> None:
    sources = json.loads(Path(f"{prefix}.json").read_bytes())["sources"]
    sources[0]["size_bytes"] += 1
    change_sidecar(prefix, sources=sources)
    [found] = differences(prefix)
    assert found.startswith(f"{sources[0]['path']}: changed since")


@pytest.mark.parametrize("changes", [{"sources": None}, {"options": {}}, {"part": {"index": 1, "is_last": True}}])
def test_sources_that_are_not_known(prefix: str, changes: dict[str, Any]) -> None:
    change_sidecar(prefix, **changes)
    with pytest.raises(NoInput):
        differences(prefix)


def test_a_merged_dataset(made: Path, tmp_path: Path) -> None:
    whole = str(made / "whole_text_document")
    for name in ("one", "two"):
        for end in (".bin", ".idx", ".json"):
            (tmp_path / f"{name}{end}").write_bytes(Path(whole + end).read_bytes())
    merged = merge.build(merge.plan([str(tmp_path / "one"), str(tmp_path / "two")], str(tmp_path / "merged")))
    assert differences(merged.prefix) == []


def test_files_of_shards_and_parts_count_once(tmp_path: Path) -> None:
    def part(name: str, files: list[str], shard: tuple[int, int] | None, index: int, is_last: bool) -> manifest.Dataset:
        options = {"shard": {"index": shard[0], "count": shard[1]} if shard else None}
        record = {"sources": [{"path": file} for file in files], "part": {"index": index, "is_last": is_last}}
        (tmp_path / f"{name}.json").write_text(json.dumps(record | {"options": options}))
        return manifest.Dataset(str(tmp_path / name))

    first = part("a", ["x", "y"], (0, 2), 0, False)
    second = part("b", ["y"], (0, 2), 1, True)
    third = part("c", ["y", "z"], (1, 2), 0, True)
    alone = part("d", ["x"], None, 0, True)

    def paths(*parts: manifest.Dataset) -> list[str] | None:
        files = provenance.shared_sources(parts)
        return None if files is None else [file["path"] for file in files]

    assert paths(first, second, third, alone, alone) == ["x", "y", "z", "x", "x"]
    assert paths(alone, first, second, third) == ["x", "x", "y", "z"]
    for incomplete in ([first], [first, second], [second, third], [first, third], [third, first, second], [first, alone]):
        assert paths(*incomplete) is None
    assert paths(alone, manifest.Dataset(str(tmp_path / "unknown"))) is None
    assert paths(part("e", ["x", "x"], None, 0, True)) is None


def test_command(run: Run, made: Path, prefix: str) -> None:
    assert run("verify", made / "whole_text_document", "--deep", "5").returncode == 0
    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r+")
    tokens[0] += 1
    tokens.flush()
    result = run("verify", prefix, "--deep", "1000")
    assert result.returncode == 1
    assert result.stdout.startswith(f"{prefix}: document 0 (")


@pytest.fixture
def curated(tmp_path: Path, run: Run, demo_tokenizer: Path, write_lines: WriteLines) -> str:
    """A dataset of two files from which rules removed the documents of one and of many words."""
    for name in ("a", "b"):
        records = [{"text": "word " * (number % 5)} if number % 9 else {} for number in range(1, 60)]
        write_lines(tmp_path / f"{name}.jsonl", records)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    options = ["--keep-length", "words:2:3", "--on-error", "skip", "--append-eod", "-o", tmp_path / "curated"]
    result = run(*files, "--tokenizer", demo_tokenizer, *options, "--plain")
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_curated_dataset_is_what_rules_left_of_its_sources(curated: str, run: Run) -> None:
    assert run("verify", "--deep", "100", curated).returncode == 0
    tokens = np.memmap(f"{curated}.bin", np.uint16, "r+")
    tokens[0] += 1
    tokens.flush()
    [difference] = differences(curated)
    assert difference.startswith("document 0 (")


def test_a_document_that_neither_stays_nor_was_removed(curated: str) -> None:
    record = json.loads(Path(f"{curated}.json").read_bytes())
    record["counts"]["removed"]["too_short"] -= 1
    change_sidecar(curated, counts=record["counts"])
    kept, removed = record["counts"]["documents"], sum(record["counts"]["removed"].values())
    assert differences(curated) == [f"{kept} documents and {removed} removed ones, its sources hold {kept + removed + 1}"]


def test_a_curated_dataset_of_cut_documents(tmp_path: Path, run: Run, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": f"{number} word " * (number % 9)} for number in range(200)])
    options = ["--keep-length", "words:3:", "--max-document-tokens", "8", "--append-eod", "-o", tmp_path / "o", "--plain"]
    result = run(file, "--tokenizer", demo_tokenizer, *options)
    assert result.returncode == 0, result.stderr
    assert differences(result.stdout.strip(), 1000) == []
