"""What is given on a command line comes back in messages, but for the secrets in it."""

import itertools
import json
import subprocess

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
CASES = [*itertools.product(COMMANDS, URLS)]
# Runs each command line in a copy of a process that has imported what reads addresses, which takes a second. Prints exit codes.
RUN = """
import json, os, runpy, sys
import fsspec.implementations.http, s3fs

for number, (program, *words) in enumerate(json.loads(sys.argv[1])):
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.argv = [program, *words]
        runpy.run_module(program.replace("-", "_"), run_name="__main__", alter_sys=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


def words(command: str, url: str) -> list[str]:
    return [URLS[url].format(word[1:-1]) if word.startswith("{") else word for word in COMMANDS[command]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """The exit code of each case, and what was printed."""
    directory = tmp_path_factory.mktemp("secrets")
    command = [nursery.light_python(), "-c", RUN, json.dumps([words(*case) for case in CASES])]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    printed = [(directory / str(number)).read_text() for number in range(len(CASES))]
    return dict(zip(CASES, zip(map(int, done.stdout.split()), printed, strict=True), strict=True))


@pytest.mark.parametrize(("command", "url"), CASES)
def test_no_message_repeats_a_secret(results: dict[tuple[str, str], tuple[int, str]], command: str, url: str) -> None:
    code, printed = results[command, url]
    assert code not in (0, 70), printed
    assert "error: " in printed
    assert "hunter2pass" not in printed
