"""The tokenizer that a Megatron script names is compared with that of data which lt-preprocess made."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import Result, run

TOKENIZER = Path(__file__).parents[3] / "demo/tokenizer"
LLAMA3 = "Llama3Tokenizer"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and its tokenizer, and another one."""
    place = tmp_path_factory.mktemp("stated")
    shutil.copytree(TOKENIZER, place / "tokenizer")
    shutil.copytree(TOKENIZER, place / "other")
    merges = (place / "other/merges.txt").read_text().splitlines()
    (place / "other/merges.txt").write_text("\n".join(merges[:-1]) + "\n")
    (place / "text.jsonl").write_text('{"text": "some words"}\n' * 200)
    words = ["text.jsonl", "--tokenizer", "tokenizer", "--append-eod", "-o", "data"]
    subprocess.run([sys.executable, "-m", "lt_preprocess", *words], cwd=place, check=True, capture_output=True)
    return place


def dry_run(place: Path, *options: str) -> Result:
    steps = (
        "--train-iters",
        "2",
        "--global-batch-size",
        "2",
        "--micro-batch-size",
        "1",
        "--seq-length",
        "16",
        "--eval-iters",
        "0",
    )
    return run(
        str(place / "data_text_document"), "--model", "tiny", *steps, "--ranks", "1", "--device", "cpu", "--dry-run", *options
    )


def test_the_tokenizer_of_the_data(place: Path) -> None:
    files = ("--vocab-file", f"{place}/tokenizer/vocab.json", "--merge-file", f"{place}/tokenizer/merges.txt")
    done = dry_run(place, "--tokenizer-type", "GPT2BPETokenizer", *files)
    assert done.code == 0, done.err
    assert dry_run(place, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", f"{place}/tokenizer").code == 0
    assert dry_run(place, "--tokenizer-type", "GPT2BPETokenizer").code == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--merge-file", "{place}/other/merges.txt"), 78, "its tokenizer is tokenizer, and not {place}/other/merges.txt"),
        (("--tokenizer-type", LLAMA3), 78, "--tokenizer-type Llama3Tokenizer, but the data's tokenizer is a gpt2 tokenizer"),
        (("--tokenizer-type", "NullTokenizer"), 78, "--tokenizer-type NullTokenizer, but the data's"),
        (
            ("--tokenizer-type", LLAMA3, "--vocab-file", "{place}/tokenizer/vocab.json"),
            78,
            "a gpt2 tokenizer, which is no Llama3",
        ),
        (("--tokenizer-model", "{place}/none"), 66, "{place}/none: no such tokenizer file"),
        (("--tokenizer-type", "Wrong"), 2, "'Wrong' is not one of"),
    ],
)
def test_another_tokenizer_is_refused(place: Path, options: tuple[str, ...], code: int, message: str) -> None:
    done = dry_run(place, *(option.format(place=place) for option in options))
    assert done.code == code, done.err
    assert message.format(place=place) in done.err


def test_data_that_does_not_say_its_tokenizer(place: Path, tmp_path: Path) -> None:
    for end in ("bin", "idx"):
        shutil.copy(place / f"data_text_document.{end}", tmp_path / f"data_text_document.{end}")
    done = dry_run(tmp_path, "--vocab-size", "2048", "--tokenizer-model", f"{place}/tokenizer")
    assert done.code == 0, done.err
    assert f"it is not known whether its tokenizer is {place}/tokenizer" in done.err
