"""Text as DATA: lt-preprocess is started and ended by lt-train."""

import os
import sys
from pathlib import Path

import pytest
from running import SMALL, losses, run, train

from lt_shared.console import ExitCode
from lt_train.launch.tokenization import is_text

DEMO = Path(__file__).parents[2] / "demo"
TEXT = (str(DEMO / "corpus.jsonl.zst"), "--tokenizer", str(DEMO / "tokenizer"), "--train-iters", "3", "--ranks", "1")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH that has lt-preprocess, wherever the tests run."""
    program = tmp_path / "bin/lt-preprocess"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho started >> "{tmp_path}/started"\nexec {sys.executable} -m lt_preprocess "$@"\n')
    program.chmod(0o755)
    return os.pathsep.join([str(program.parent), os.environ["PATH"]])


def test_text_is_tokenized_on_the_way(tmp_path: Path, path: str) -> None:
    done = train(*SMALL, *TEXT, "--save", str(tmp_path / "run"), PATH=path)
    assert done.code == 0, done.err
    assert ("step", 3) in losses(tmp_path / "run")
    assert (tmp_path / "run/data/text-part00000_text_document.idx").is_file()
    again = run(*SMALL, *TEXT, "--save", str(tmp_path / "run"), PATH=path)
    assert (again.code, "3 iterations are done" in again.err) == (0, True)


def test_what_cannot_be_tokenized(tmp_path: Path, path: str) -> None:
    save = ("--save", str(tmp_path / "run"))
    for arguments, code, said in (
        ((*TEXT,), ExitCode.USAGE, "nowhere to tokenize it to"),
        ((TEXT[0], *save), ExitCode.USAGE, "no tokenizer is named"),
        ((*TEXT, *save, "--dry-run"), ExitCode.USAGE, "--dry-run writes nothing"),
        ((*TEXT, *save, "other_text_document"), ExitCode.USAGE, "other data is not"),
        (("other_text_document", "--tokenizer", "x"), ExitCode.USAGE, "is for text as DATA"),
    ):
        done = train(*SMALL, *arguments, PATH=path)
        assert (done.code, said in done.err) == (code, True), done.err
    missing = train(*SMALL, *TEXT, *save, PATH="/nonexistent")
    assert (missing.code, "pip install ./tools/preprocess" in missing.err) == (ExitCode.UNAVAILABLE, True)
    assert not (tmp_path / "started").exists()


def test_a_tokenizer_that_is_not_there(tmp_path: Path, path: str) -> None:
    """lt-preprocess says what is wrong; lt-train has nothing to train on."""
    done = train(*SMALL, TEXT[0], "--tokenizer", "/nowhere", "--save", str(tmp_path / "run"), PATH=path)
    assert done.code == ExitCode.NO_INPUT
    assert "/nowhere" in done.err


@pytest.mark.parametrize(
    ("word", "is_it"),
    [
        *(("a.jsonl", True), ("b/c.parquet", True), ("a.txt.gz", True), ("s3://b/a.json.zst", True)),
        *(("a_text_document", False), ("@a.txt", False), ("0.7", False), ("-", False)),
    ],
)
def test_what_is_text(word: str, is_it: bool) -> None:
    assert is_text(word) is is_it
