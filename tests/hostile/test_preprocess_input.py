"""A directory of inputs in which a stranger may leave something."""

import subprocess
import sys
from pathlib import Path

import pytest
from stranger import Stranger

DEMO_TOKENIZER = Path(__file__).parents[1] / "demo/tokenizer"


@pytest.mark.parametrize(
    "planted",
    [
        "mkfifo x.jsonl",
        "ln -s ../secret.jsonl x.jsonl",
        "ln -s ../secrets x",
        "ln -s .. up",
        "mkdir deep; ln -s ../.. deep/up",
        "ln -s / all",
        "ln -s x.jsonl x.jsonl",
        "ln -s /dev/zero x.txt",
    ],
)
def test_a_directory_as_input(tmp_path: Path, stranger: Stranger, planted: str) -> None:
    source = stranger.shared / "in"
    source.mkdir()
    source.chmod(0o1777)
    (stranger.shared / "secrets").mkdir()
    (stranger.shared / "secrets/b.jsonl").write_text('{"text": "a secret"}\n')
    (stranger.shared / "secret.jsonl").write_text('{"text": "a secret"}\n')
    (source / "a.jsonl").write_text('{"text": "public"}\n')
    stranger.run(f"cd in; {planted}")
    command = [sys.executable, "-m", "lt_preprocess", source, "--tokenizer", DEMO_TOKENIZER, "-o", tmp_path / "out"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, check=False)
    if planted == "ln -s x.jsonl x.jsonl":
        assert (done.returncode, "x.jsonl: too many levels of symbolic links" in done.stderr) == (74, True), done.stderr
    elif "ln -s" in planted and "/dev/zero" not in planted:
        # Whether the link leads to documents of this corpus, nobody but its owner knows.
        assert (done.returncode, "is a link that another user" in done.stderr) == (65, True), done.stderr
        assert not list(tmp_path.iterdir())
    else:
        assert done.returncode == 0, done.stderr
        assert "1 document," in done.stderr
        assert "not read" in done.stderr
