"""A reader of standard output that has gone, as in `| head -1`: the command ends once with 141, and its output is whole."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import nursery
import pytest
from convert_models import write_model

TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"


def write_texts(directory: Path) -> None:
    (directory / "a.jsonl").write_text("".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(50)))


def write_models(directory: Path) -> None:
    write_model(directory / "a")
    write_model(directory / "b", seed=1)


def run(command: str, directory: Path, stdout: int) -> subprocess.CompletedProcess[bytes]:
    module, *words = command.split()
    started = [nursery.light_python(), "-m", module, *words]
    return subprocess.run(started, cwd=directory, stdout=stdout, stderr=subprocess.PIPE, timeout=300)


def outputs(directory: Path) -> dict[str, bytes]:
    """The data that the command has written: no records, which have the time."""
    names = (".bin", ".idx", ".safetensors", ".distcp")
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.suffix in names}


@pytest.mark.parametrize(
    ("write", "command"),
    [
        (write_texts, f"lt_preprocess a.jsonl --tokenizer {TOKENIZER} --workers 1 -o out"),
        (write_texts, f"lt_preprocess a.jsonl --tokenizer {TOKENIZER} --workers 1 --stream -o out"),
        (write_models, "lt_convert a --to torchtitan -o out"),
        (write_models, "lt_convert merge a b --to hf -o out"),
        (write_models, "lt_train plan --model llama3-8b --gpu h100-80gb --nodes 2 --global-batch-size 64"),
    ],
    ids=["tokenize", "stream", "convert", "merge", "plan"],
)
def test_a_closed_pipe_ends_a_command_once(write: Callable[[Path], None], command: str, tmp_path: Path) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    undisturbed = run(command, tmp_path / "open", subprocess.PIPE)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert undisturbed.stdout
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    closed = run(command, tmp_path / "closed", writing_end)
    os.close(writing_end)
    assert closed.returncode == 141, closed.stderr
    assert b"Traceback" not in closed.stderr
    assert outputs(tmp_path / "closed") == outputs(tmp_path / "open")
    again = run(command, tmp_path / "closed", subprocess.PIPE)
    assert again.returncode == 0, again.stderr
    assert len(again.stdout.splitlines()) == len(undisturbed.stdout.splitlines())
