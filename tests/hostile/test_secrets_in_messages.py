"""What is given on a command line comes back in messages, but for the secrets in it."""

import subprocess
import sys
from pathlib import Path

import nursery
import pytest

URLS = {
    "a password": "https://someone:hunter2pass@127.0.0.1:1/{}",
    "a signature": "https://127.0.0.1:1/{}?X-Amz-Signature=hunter2pass0123456789",
    "a token": "https://127.0.0.1:1/{}?token=hunter2pass",
    "keys of Amazon": "s3://AKIAIOSFODNN7EXAMPLE:hunter2pass@bucket/{}",
}
COMMANDS = {
    "convert": ("lt-convert", "{m}", "--to", "hf", "-o", "out"),
    "converted to": ("lt-convert", ".", "--to", "hf", "-o", "{m}"),
    "verify a conversion": ("lt-convert", "verify", "{m}"),
    "preprocess": ("lt-preprocess", "{x.jsonl}", "--tokenizer", ".", "-o", "out"),
    "preprocessed to": ("lt-preprocess", "none.jsonl", "--tokenizer", ".", "-o", "{m}"),
    "verify a dataset": ("lt-preprocess", "verify", "{m}"),
    "summarize": ("lt-monitor", "summarize", "{run.log}"),
    "train": ("lt-train", "--model", "tiny", "--mock-data", "--save", "{run}", "--dry-run"),
    "train on": ("lt-train", "--model", "tiny", "{data}", "--dry-run"),
}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_message_repeats_a_secret(command: str, url: str, tmp_path: Path) -> None:
    program, *words = (URLS[url].format(word[1:-1]) if word.startswith("{") else word for word in COMMANDS[command])
    own = [Path(sys.executable).with_name(program)]
    copy = [nursery.light_python(), "-m", program.replace("-", "_")]
    words = [*(own if program == "lt-train" else copy), *words]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode not in (0, 70), done.stderr
    assert "error: " in done.stderr
    assert "hunter2pass" not in done.stdout + done.stderr
