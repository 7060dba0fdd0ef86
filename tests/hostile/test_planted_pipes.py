"""Pipes under the names of records that lie beside data: nothing waits for somebody to write into them."""

import os
import subprocess
from pathlib import Path

import numpy as np
import nursery
import pytest
from convert_models import write_model
from running import SMALL

from lt_shared.data import indexed_dataset

TOKENIZER = Path(__file__).parents[1] / "demo/tokenizer"


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    prefix = str(tmp_path / "data")
    with indexed_dataset.Writer(prefix, np.uint16) as writer:
        writer.append(np.arange(4000) % 2000, np.full(4, 1000), np.ones(4, np.int64))
        writer.publish()
    return prefix


def run(tool: str, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [nursery.light_python(), "-m", f"lt_{tool}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, cwd=cwd)


@pytest.mark.parametrize("command", [("preprocess", "verify"), ("preprocess", "info"), ("train", *SMALL, "--train-iters", "1")])
def test_a_pipe_as_description_of_a_dataset(command: tuple[str, ...], dataset: str) -> None:
    os.mkfifo(f"{dataset}.json")
    done = run(*command, dataset)
    assert done.returncode in (1, 65), done.stderr
    assert f"{dataset}.json: not a regular file" in done.stderr + done.stdout


@pytest.mark.parametrize("place", ["model", "."])
def test_a_pipe_as_record_of_a_conversion(place: str, tmp_path: Path) -> None:
    write_model(tmp_path / "model", tokenizer=True)
    os.mkfifo(tmp_path / place / "lt-convert.json")
    done = run("convert", tmp_path / "model", "--to", "torchtitan", "-o", tmp_path / "out")
    assert done.returncode == 65, done.stderr
    assert "lt-convert.json: not a regular file" in done.stderr


def test_a_pipe_as_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.model")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    done = run("preprocess", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tokenizer.model", "-o", tmp_path / "out")
    assert done.returncode == 65, done.stderr
    assert "tokenizer.model: not a regular file" in done.stderr


def test_a_pipe_where_a_store_seems_to_have_a_journal(tmp_path: Path) -> None:
    """The journal of an output directly below a store lies in no directory of it, but perhaps in one here that is named alike."""
    (tmp_path / "memory:").mkdir()
    os.mkfifo(tmp_path / "memory:/.web_text_document.journal")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    words = [tmp_path / "a.jsonl", "--tokenizer", TOKENIZER, "--max-shard-size", "1K", "-o", "memory://web"]
    done = run("preprocess", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "the outputs have no name" in done.stderr
