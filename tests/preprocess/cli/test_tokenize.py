"""The program as a user meets it: help, exit codes, pipes, and every documented example."""

import gzip
import json
import lzma
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import pytest
import zstandard
from tokenizers import ByteLevelBPETokenizer

from lt_preprocess.cli.datasets import commands
from lt_preprocess.cli.tokenize import EXAMPLES
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]

ROOT = Path(__file__).parents[3]
README = ROOT / "tools/preprocess/README.md"
PAGES = (README, *(ROOT / f"docs/guides/{name}.md" for name in ("data", "tokenizers", "resume")))
HEAVY = {
    "numba",
    "numpy",
    "orjson",
    "zstandard",
    "tokenizers",
    "sentencepiece",
    "tiktoken",
    "torch",
    "megatron",
    "transformers",
    "rich",
    "fsspec",
}


@pytest.fixture
def file(tmp_path: Path, write_lines: WriteLines) -> Path:
    return write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}])


def records(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_and_version_import_nothing_heavy(option: str) -> None:
    script = (
        "import sys\n"
        "from lt_preprocess.cli import main\n"
        f"sys.argv = ['lt-preprocess', {option!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(re.findall(r"'(\w+)'", result.stderr))
    assert "click" in modules
    assert not modules & HEAVY


def test_help_begins_with_examples(run: Run) -> None:
    result = run("--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Examples:\n\n  lt-preprocess ")
    assert "LT_PREPROCESS_TOKENIZER" in result.stdout


def documented_commands() -> list[str]:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    in_pages = re.findall(rf"^    (?=\S*.*lt-preprocess (?!{'|'.join(commands.commands)}\b))(.+)$", text, re.MULTILINE)
    return list(dict.fromkeys([*EXAMPLES.strip().splitlines(), *in_pages]))


@pytest.mark.parametrize("command", documented_commands())
def test_documented_examples(
    tmp_path: Path, demo_tokenizer: Path, llama3_model: Path, sentencepiece_model: Path, command: str
) -> None:
    lines = b'{"text": "some text", "content": "more of it", "meta": {"text": "all of it"}}\n' * 3
    for name, content in {
        "corpus.jsonl": lines,
        "corpus.jsonl.xz": lzma.compress(lines),
        "crawl/1.jsonl.zst": zstandard.compress(lines),
        "crawl/2.jsonl.zst": zstandard.compress(lines),
        "books.jsonl.gz": gzip.compress(lines),
        "dump.jsonl": lines,
        "code.jsonl": lines,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "data").mkdir()
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "gpt2").symlink_to(demo_tokenizer)
    (tmp_path / "llama3").symlink_to(llama3_model.parent)
    (tmp_path / "llama2").mkdir()
    (tmp_path / "llama2/tokenizer.model").symlink_to(sentencepiece_model)
    tokenizer = ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"])
    (tmp_path / "starcoder2").mkdir()
    tokenizer.save(str(tmp_path / "starcoder2/tokenizer.json"))
    program = tmp_path / "bin/lt-preprocess"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(nursery.light_python())} -m lt_preprocess "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    if "--dry-run" not in command:
        assert list((tmp_path / "data").glob("*_document.idx"))


def test_the_readme_shows_what_is_printed(run: Run, tmp_path: Path) -> None:
    """Of its commands in order, up to what it leaves out."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "data").mkdir()
    text = README.read_text(encoding="utf-8")
    commands = re.findall(r"^    lt-preprocess (.+)$", text, re.MULTILINE)
    printed = "".join(run(*command.split(), cwd=tmp_path).stdout for command in commands)
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = [line.partition("...")[0].replace("/fsx", str(tmp_path)) for block in blocks for line in block.splitlines()]
    assert len(shown) > 5
    assert [line for line in shown if line not in printed] == []


def test_documents_without_an_end_are_warned_of(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    arguments = (file, "--tokenizer", demo_tokenizer, "-o", "out")
    warned = run(*arguments, cwd=tmp_path).stderr
    assert warned.count("warning: without --append-eod nothing tells a model where a document ends") == 1
    assert "append-eod" not in run(*arguments, "--append-eod", "--force", cwd=tmp_path).stderr


def test_quiet_and_verbose(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    arguments = (file, "--tokenizer", demo_tokenizer, "--append-eod", "-o", "out")
    assert run("-q", *arguments, cwd=tmp_path).stderr == ""
    bad = run("-q", "no.jsonl", *arguments[1:], cwd=tmp_path)
    assert (bad.returncode, bad.stderr) == (66, "lt-preprocess: error: no.jsonl: no such file\n")
    told = run(*arguments, "-v", cwd=tmp_path).stderr.splitlines()[-1]
    assert re.fullmatch(r"lt-preprocess: took \d+\.\d\d s, a process [\d,]+ MiB of memory at most", told)
    assert run("info", "-v", "out_text_document", cwd=tmp_path).stderr.startswith("lt-preprocess: took ")


def test_manifest(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    result = run(file, "--tokenizer", demo_tokenizer, "--append-eod", "-o", "out", cwd=tmp_path)
    assert result.returncode == 0
    entry, end = records(result)
    assert end == {"v": 1, "kind": "end", "count": 1}
    assert entry == {
        "v": 1,
        "kind": "dataset",
        "prefix": str(tmp_path / "out_text_document"),
        "documents": 2,
        "tokens": 4,
        "dtype": "uint16",
        "vocab_size": 2048,
        "eod": 2047,
        "tokenizer": {"name": "tokenizer", "sha256": entry["tokenizer"]["sha256"], "path": str(demo_tokenizer)},
        "weight": 1.0,
    }
    [read] = manifest.parse(result.stdout.splitlines(), "test")
    assert manifest.describe(entry["prefix"]) == read
    assert indexed_dataset.Reader(entry["prefix"]).tokens.tolist() == [64, 2047, 65, 2047]
    assert "2 documents, 4 tokens" in result.stderr


def test_plain(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    result = run(file, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", "--plain")
    assert result.stdout == f"{tmp_path}/out_text_document\n"


def test_again_is_up_to_date_and_force_is_not(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    arguments = [file, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    first = run(*arguments)
    index = tmp_path / "out_text_document.idx"
    written = index.stat().st_mtime_ns
    second = run(*arguments, "--workers", "1")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert "up to date" in second.stderr
    assert index.stat().st_mtime_ns == written
    third = run(*arguments, "--force")
    assert (third.returncode, third.stdout) == (0, first.stdout)
    assert "up to date" not in third.stderr
    assert index.stat().st_mtime_ns > written


def test_standard_input_compressed_and_never_up_to_date(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    compressed = tmp_path / "in"
    compressed.write_bytes(zstandard.compress(b'\xef\xbb\xbf{"text": "a"}'))
    for option in ([], ["--force"]):
        with compressed.open("rb") as file:
            result = run("-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", *option, stdin=file)
        assert result.returncode == 0
        assert "up to date" not in result.stderr
        assert records(result)[0]["tokens"] == 1


def test_bad_line_in_standard_input(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    result = run("-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", input='{"text": "a"}\n\n{"text": 7}\n')
    assert (result.returncode, result.stdout) == (65, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith(("lt-preprocess: error", "hint"))]
    assert errors == [
        "lt-preprocess: error: standard input, line 3, byte 15: 'text' is a number, expected a string or a list of strings",
        "hint: --on-error skip or quarantine leaves such lines out and reports them",
    ]
    assert list(tmp_path.iterdir()) == []
    assert "cannot be read again" in result.stderr


def test_another_key_than_the_one_asked_for(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    """--on-error skip would leave out every line."""
    options = ("--json-keys", "content", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out")
    result = run("-", *options, input='{"id": 7, "text": "a"}\n')
    assert result.returncode == 65
    assert "standard input, line 1, byte 0: no key 'content', it has 'id', 'text'" in result.stderr
    assert "hint: --json-keys names the key that has the text; " in result.stderr


def test_dry_run_writes_nothing(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    result = run(file, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", "--dry-run", "--workers", "3")
    assert result.returncode == 0
    [plan] = records(result)
    assert plan["kind"] == "plan"
    assert plan["workers"] == 3
    assert plan["up_to_date"] is False
    assert plan["inputs"] == [{"path": str(file), "size_bytes": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


@pytest.mark.parametrize(("prefix", "code"), [("no/such/out", 73), ("", 2), (".", 2), ("dir/", 2)])
def test_dry_run_checks_where_the_output_goes(
    run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path, prefix: str, code: int
) -> None:
    result = run(file, "--tokenizer", demo_tokenizer, "-o", prefix, "--dry-run", cwd=tmp_path)
    assert result.returncode == code
    assert "hint: " in result.stderr


def test_files_beside_input(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    arguments = [file, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    assert run(*arguments, "--input", file).returncode == 2
    [dataset, _] = records(run(*arguments, env=os.environ | {"LT_PREPROCESS_INPUT": str(file)}))
    assert dataset["documents"] == 2


def test_options_from_the_environment(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    environment = os.environ | {
        "LT_PREPROCESS_TOKENIZER": str(demo_tokenizer),
        "LT_PREPROCESS_OUTPUT_PREFIX": str(tmp_path / "out"),
        "LT_PREPROCESS_APPEND_EOD": "1",
    }
    assert records(run(file, env=environment))[0]["tokens"] == 4


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no arguments": ([], 2, "Missing option"),
    "no inputs": (["--tokenizer", "tok", "-o", "out"], 2, "Missing argument"),
    "two tokenizers": (["a.jsonl", "--tokenizer", "tok", "--vocab-file", "v", "-o", "out"], 2, "both name a tokenizer"),
    "a size that is none": (["a.jsonl", "--tokenizer", "tok", "--max-shard-size", "2 bananas", "-o", "out"], 2, "no size"),
    "no tokenizer": (["a.jsonl", "-o", "out"], 2, "no tokenizer is named"),
    "no output": (["a.jsonl", "--tokenizer", "tok"], 2, "--output-prefix"),
    "standard input twice": (["-", "-", "--tokenizer", "tok", "-o", "out"], 2, "given twice"),
    "no such input": (["nowhere.jsonl", "--tokenizer", "tok", "-o", "out"], 66, "nowhere.jsonl: no such file"),
    "no match": (["no*.jsonl", "--tokenizer", "tok", "-o", "out"], 66, "no*.jsonl: no file matches"),
    "one of two inputs missing": (["a.jsonl", "gone.jsonl", "--tokenizer", "tok", "-o", "out"], 66, "gone.jsonl: no such file"),
    "a directory without inputs": (["vacant", "--tokenizer", "tok", "-o", "out"], 66, "vacant: no file below ends in .jsonl"),
    "empty input": (["empty.jsonl", "--tokenizer", "tok", "-o", "out"], 66, "empty.jsonl: no documents"),
    "no such tokenizer": (["a.jsonl", "--tokenizer", "nowhere", "-o", "out"], 66, "nowhere: no such file, directory"),
    "an empty tokenizer": (["a.jsonl", "--tokenizer", "vacant", "-o", "out"], 66, "vacant: no tokenizer in this directory"),
    "a damaged tokenizer": (["a.jsonl", "--tokenizer", "damaged.model", "-o", "out"], 65, "damaged.model"),
    "no such directory": (["a.jsonl", "--tokenizer", "tok", "-o", "no/out"], 73, "no such directory"),
    "no such filesystem": (["nofs://a.jsonl", "--tokenizer", "tok", "-o", "out"], 69, "nofs"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_with_their_exit_code(run: Run, tmp_path: Path, file: Path, demo_tokenizer: Path, case: str) -> None:
    arguments, code, message = ERRORS[case]
    shutil.copytree(demo_tokenizer, tmp_path / "tok")
    (tmp_path / "vacant").mkdir()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "damaged.model").write_bytes(b"\n\x10abc")
    before = sorted(tmp_path.rglob("*"))
    result = run(*arguments, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.startswith("lt-preprocess: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_reader_that_leaves_early(tmp_path: Path, file: Path, demo_tokenizer: Path) -> None:
    command = [sys.executable, "-m", "lt_preprocess", str(file), "--tokenizer", str(demo_tokenizer), "-o", str(tmp_path / "out")]
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert result.returncode == 141
    assert "Traceback" not in result.stderr
