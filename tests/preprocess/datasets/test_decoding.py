"""Datasets as text and in numbers: what `cat` and `info` show, also of datasets that Megatron wrote."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from lt_preprocess.datasets import decoding, statistics
from lt_shared.console import BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.tokenizers import tokenizer_files

Run = Callable[..., subprocess.CompletedProcess[str]]

EOD = 2047
TEXTS: list[str | list[str]] = ["Hello world", "", ["first", "second"], "Zoë 👩‍👩‍👧 <|endoftext|>", "end"]


@pytest.fixture
def prefix(tmp_path: Path, demo_tokenizer: Path, demo_reference: tiktoken.Encoding) -> str:
    """The TEXTS with end of document, as Megatron's preprocess_data.py writes them: without a sidecar."""
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.uint16)
    for text in TEXTS:
        sequences = [demo_reference.encode_ordinary(one) for one in ([text] if isinstance(text, str) else text) if one]
        if sequences:
            sequences[-1].append(EOD)
        tokens = [token for sequence in sequences for token in sequence]
        builder.add_document(torch.tensor(tokens, dtype=torch.int64), [len(sequence) for sequence in sequences])
    builder.finalize(str(tmp_path / "a.idx"))
    return str(tmp_path / "a")


def describe(prefix: str, tokenizer: Path, **options: Any) -> None:
    """Give the dataset a sidecar."""
    identity = manifest.Tokenizer("demo", tokenizer_files.find(tokenizer).sha256(), str(tokenizer))
    entry = manifest.Dataset(prefix, vocab_size=2048, eod=EOD, tokenizer=identity)
    Path(f"{prefix}.json").write_text(json.dumps({"dataset": manifest.record_of(entry), "options": options}))


def lines(result: subprocess.CompletedProcess[str]) -> list[Any]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_cat_a_dataset_of_megatron(run: Run, prefix: str, demo_tokenizer: Path) -> None:
    assert lines(run("cat", prefix, "--tokenizer", demo_tokenizer)) == [{"text": text} for text in TEXTS]


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_cat_and_info_take_integers_of_any_size_that_holds_the_ids(
    run: Run, tmp_path: Path, demo_tokenizer: Path, dtype: type[np.signedinteger[Any]]
) -> None:
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=dtype)
    builder.add_document(torch.tensor([66, 433, EOD]), [3])
    builder.finalize(str(tmp_path / "a.idx"))
    prefix = tmp_path / "a"
    assert lines(run("cat", prefix, "--tokenizer", demo_tokenizer)) == [{"text": "call"}]
    assert "call" in run("info", prefix, "--tokenizer", demo_tokenizer).stdout
    assert run("grep", "call", prefix, "--tokenizer", demo_tokenizer).returncode == 0


def test_cat_and_info_take_uint16_of_a_vocabulary_of_65536_entries(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    """Megatron takes int32 from 65,500 entries on, datatrove uint16 up to 65,536."""
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(demo_tokenizer, tokenizer)
    ids = json.loads((tokenizer / "vocab.json").read_text())
    ids |= {f"token{number}": number for number in range(len(ids), 65_536)}
    (tokenizer / "vocab.json").write_text(json.dumps(ids))
    builder = IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.uint16)
    builder.add_document(torch.tensor([66, 433, 65_535, EOD]), [4])
    builder.finalize(str(tmp_path / "a.idx"))
    assert lines(run("cat", tmp_path / "a", "--tokenizer", tokenizer)) == [{"text": "calltoken65535"}]
    record = json.loads(run("info", tmp_path / "a", "--tokenizer", tokenizer, "--json").stdout.splitlines()[0])
    assert (record["dtype"], record["documents"]) == ("uint16", 1)
    assert run("grep", "token65535", tmp_path / "a", "--tokenizer", tokenizer).returncode == 0


def test_cat_finds_the_tokenizer_and_the_key(run: Run, prefix: str, demo_tokenizer: Path) -> None:
    describe(prefix, demo_tokenizer, json_key="content", append_eod=True)
    assert lines(run("cat", prefix)) == [{"content": text} for text in TEXTS]


def test_an_end_of_document_that_nobody_appended_is_text(prefix: str, demo_tokenizer: Path) -> None:
    describe(prefix, demo_tokenizer, append_eod=False)
    [only] = decoding.records(prefix, None, "0")
    assert only == {"text": "Hello world<|endoftext|>"}


@pytest.mark.parametrize(
    ("documents", "expected"),
    [("0", [0]), ("4", [4]), ("1:3", [1, 2]), (":2", [0, 1]), ("3:", [3, 4]), (":", [0, 1, 2, 3, 4]), ("2:2", [])],
)
def test_ranges(prefix: str, demo_tokenizer: Path, documents: str, expected: list[int]) -> None:
    found = list(decoding.records(prefix, demo_tokenizer, documents))
    assert found == [{"text": TEXTS[number]} for number in expected]


@pytest.mark.parametrize("documents", ["5", "0:6", "3:1", "-1", "x", "1:2:3", ""])
def test_ranges_that_are_none(prefix: str, demo_tokenizer: Path, documents: str) -> None:
    with pytest.raises(UsageError, match="--documents"):
        list(decoding.records(prefix, demo_tokenizer, documents))


def test_tokenizing_the_lines_again_gives_the_same_dataset(run: Run, prefix: str, demo_tokenizer: Path) -> None:
    text = run("cat", prefix, "--tokenizer", demo_tokenizer).stdout
    result = run("-", "--tokenizer", demo_tokenizer, "--append-eod", "-o", f"{prefix}-again", "--plain", input=text)
    assert result.returncode == 0, result.stderr
    again = result.stdout.strip()
    for end in (".bin", ".idx"):
        assert Path(again + end).read_bytes() == Path(prefix + end).read_bytes()


def test_tokenizers_that_are_not_known_or_do_not_fit(
    prefix: str, tmp_path: Path, demo_tokenizer: Path, gpt2_vocabulary: Path, llama3_model: Path
) -> None:
    def cat(tokenizer: Path | None = None) -> None:
        list(decoding.records(prefix, tokenizer, None))

    with pytest.raises(NoInput, match="nothing says which tokenizer made it"):
        cat()
    with pytest.raises(BadData, match="holds uint16, too small for the 128,256 entries"):
        cat(llama3_model)
    own = tmp_path / "own"
    shutil.copytree(demo_tokenizer, own)
    describe(prefix, own)
    with pytest.raises(BadData, match="not the tokenizer that made"):
        cat(gpt2_vocabulary)
    shutil.rmtree(own)
    with pytest.raises(NoInput, match="own: no such tokenizer") as caught:
        cat()
    assert "--tokenizer" in str(caught.value.hint)
    cat(demo_tokenizer)


def test_a_token_that_the_tokenizer_has_not(prefix: str, demo_tokenizer: Path) -> None:
    np.memmap(f"{prefix}.bin", np.uint16, "r+")[0] = 2048
    with pytest.raises(BadData, match="token 2048 is not one of the tokenizer's 2,048"):
        list(decoding.records(prefix, demo_tokenizer, None))


def test_statistics(run: Run, prefix: str, demo_tokenizer: Path, demo_reference: tiktoken.Encoding) -> None:
    describe(prefix, demo_tokenizer, append_eod=True)
    [record] = lines(run("info", prefix, "--json", "--documents", "2"))
    joined = ["".join(text) for text in TEXTS]
    lengths = [len(demo_reference.encode_ordinary(text)) + bool(text) for text in joined[:2] + joined[3:]]
    lengths.append(sum(len(demo_reference.encode_ordinary(text)) for text in TEXTS[2]) + 1)
    assert (record["documents"], record["sequences"], record["tokens"]) == (5, 5, sum(lengths))
    assert (record["kind"], record["dtype"], record["eod"]) == ("statistics", "uint16", EOD)
    assert (record["document_tokens"]["shortest"], record["document_tokens"]["longest"]) == (0, max(lengths))
    assert record["document_tokens"]["mean"] == sum(lengths) / 5
    for bin in record["document_tokens"]["histogram"]:
        inside = [length for length in lengths if bin["shortest"] <= length <= bin["longest"]]
        assert (bin["documents"], bin["tokens"]) == (len(inside), sum(inside))
    assert sum(bin["documents"] for bin in record["document_tokens"]["histogram"]) == 5
    assert record["first_texts"] == TEXTS[:2]


def test_info_for_people(run: Run, prefix: str, demo_tokenizer: Path) -> None:
    result = run("info", prefix, "--tokenizer", demo_tokenizer)
    assert result.returncode == 0
    assert "documents   5" in result.stdout
    assert "document 0: Hello world\n" in result.stdout
    assert "document 2: first second\n" in result.stdout
    assert "document 3:" not in result.stdout
    unknown = run("info", prefix)
    assert unknown.returncode == 0
    assert "no text: " in unknown.stdout
    assert run("info", prefix, "--tokenizer", "nowhere").returncode == 66


def test_statistics_of_nothing(tmp_path: Path) -> None:
    IndexedDatasetBuilder(str(tmp_path / "none.bin"), dtype=np.uint16).finalize(str(tmp_path / "none.idx"))
    found = statistics.read(manifest.Dataset(str(tmp_path / "none")), None, 3)
    assert (found.shortest, found.longest, found.histogram) == (0, 0, [])
    assert found.lines()
