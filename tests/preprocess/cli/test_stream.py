"""--stream: a line for each part as soon as it is there, parts that depend on the text alone, readers of before."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_preprocess.pipeline import plan
from lt_preprocess.pipeline.plan import Options
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]


@pytest.fixture
def corpus(tmp_path: Path, write_lines: WriteLines) -> Path:
    return write_lines(tmp_path / "a.jsonl", [{"text": f"document {number} " * (1 + number % 40)} for number in range(400)])


def arguments(corpus: Path, tokenizer: Path, output: Path, *more: str) -> tuple[str, ...]:
    return (str(corpus), "--tokenizer", str(tokenizer), "--append-eod", "-o", str(output), "--stream", *more)


def records(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def tokens_of(prefixes: list[str]) -> list[int]:
    return [token for prefix in prefixes for token in indexed_dataset.Reader(prefix).tokens.tolist()]


def test_parts_hold_the_text_in_its_order(run: Run, tmp_path: Path, corpus: Path, demo_tokenizer: Path) -> None:
    made = run(*arguments(corpus, demo_tokenizer, tmp_path / "data", "--max-shard-size", "10k"))
    assert made.returncode == 0, made.stderr
    *parts, end = records(made.stdout)
    assert end == {"v": 1, "kind": "end", "count": len(parts)}
    assert len(parts) > 3
    assert [(part["part"], part["stream"]) for part in parts] == [
        (number, str(tmp_path / "data_text_document")) for number in range(len(parts))
    ]
    assert all(part["tokens"] * 2 <= 10_000 and part["weight"] == part["tokens"] for part in parts)
    whole = run(*arguments(corpus, demo_tokenizer, tmp_path / "whole")[:-1])
    assert tokens_of([part["prefix"] for part in parts]) == tokens_of([records(whole.stdout)[0]["prefix"]])
    again = run(*arguments(corpus, demo_tokenizer, tmp_path / "data", "--max-shard-size", "10k"))
    assert (again.stdout, "up to date" in again.stderr) == (made.stdout, True)


def test_parts_begin_small_and_double() -> None:
    stream = Options(stream=True)
    assert [stream.most_tokens(part, 4) for part in (0, 1, 2, 5, 6, 7, 1000)] == [
        *(1 << 22, 1 << 23, 1 << 24, 1 << 27, 1 << 28, 1 << 28, 1 << 28)
    ]
    assert Options(stream=True, max_shard_bytes=1000).most_tokens(9, 2) == 500
    assert (Options().most_tokens(0, 4), Options(max_shard_bytes=1000).most_tokens(0, 4)) == (None, 250)
    assert plan.FIRST_PART_TOKENS == 1 << 22


def test_a_reader_of_before_sees_datasets_with_weights(run: Run, tmp_path: Path, corpus: Path, demo_tokenizer: Path) -> None:
    """What `Dataset.from_record` and `parse` of revision ee87c81 do: unknown fields are left out, versions compared."""
    made = run(*arguments(corpus, demo_tokenizer, tmp_path / "data", "--max-shard-size", "10k"))
    *parts, end = records(made.stdout)
    then = {"prefix", "documents", "tokens", "dtype", "vocab_size", "eod", "weight"}
    for part in parts:
        assert part["v"] == 1
        known = {name: value for name, value in part.items() if name in then}
        assert known.keys() == then
        assert isinstance(known["weight"], int | float)
        assert 0 < known["weight"] < float("inf")
        assert manifest.Dataset.from_record(known | {"tokenizer": part["tokenizer"]}).tokens == part["tokens"]
    assert end["count"] == len(parts)


def test_one_key_only(run: Run, tmp_path: Path, corpus: Path, demo_tokenizer: Path) -> None:
    refused = run(*arguments(corpus, demo_tokenizer, tmp_path / "data", "--json-keys", "text", "--json-keys", "title"))
    assert refused.returncode == 2
    assert "a stream is of one key" in refused.stderr


def test_lines_come_before_the_end(tmp_path: Path, demo_tokenizer: Path) -> None:
    """From standard input, which stays open: the first parts are announced while the last is not read yet."""
    command = [
        sys.executable,
        "-m",
        "lt_preprocess",
        *arguments(Path("-"), demo_tokenizer, tmp_path / "d", "--max-shard-size", "1M"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        line = json.dumps({"text": "some words to read " * 50}).encode() + b"\n"
        process.stdin.write(line * 10_000)
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        assert (first["part"], process.poll()) == (0, None)
        assert len(indexed_dataset.Reader(first["prefix"]).tokens) == first["tokens"]
        process.stdin.close()
        *_, end = records(process.stdout.read().decode())
    assert end["kind"] == "end"


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_stream_goes_on(tmp_path: Path, write_lines: WriteLines, demo_tokenizer: Path, seed: int) -> None:
    """SIGKILL at random moments: what was printed stays, the rest is that of an undisturbed run."""
    corpus = write_lines(tmp_path / "b.jsonl", [{"text": f"document {number} " * 400} for number in range(1000)])
    command = [sys.executable, "-m", "lt_preprocess"]
    options = ("--max-shard-size", "200k", "--workers", "1")
    whole = subprocess.run(
        [*command, *arguments(corpus, demo_tokenizer, tmp_path / "whole", *options)], capture_output=True, text=True, check=True
    )
    expected = records(whole.stdout)
    random = np.random.default_rng(seed)
    printed: list[dict[str, Any]] = []
    for _ in range(3):
        with subprocess.Popen(
            [*command, *arguments(corpus, demo_tokenizer, tmp_path / "killed", *options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(random.random())
            process.kill()
            found = [json.loads(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        printed = max(printed, [part for part in found if part["kind"] == "dataset"], key=len)
    last = subprocess.run(
        [*command, *arguments(corpus, demo_tokenizer, tmp_path / "killed", *options)], capture_output=True, text=True, check=True
    )
    assert [part.get("tokens") for part in records(last.stdout)] == [part.get("tokens") for part in expected]
    for one, other in zip(records(last.stdout)[:-1], expected[:-1], strict=True):
        for ending in (".bin", ".idx"):
            assert Path(one["prefix"] + ending).read_bytes() == Path(other["prefix"] + ending).read_bytes()
    assert [part["part"] for part in printed] == list(range(1, 1 + len(printed)))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".killed")]
