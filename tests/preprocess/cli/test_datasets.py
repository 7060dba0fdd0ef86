"""The commands for finished datasets as a user meets them: every documented example runs."""

import json
import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import nursery
import pytest
import zstandard

from lt_preprocess.cli.dedup import commands
from lt_shared import console
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]

GUIDE = (Path(__file__).parents[3] / "docs/guides/datasets.md").read_text(encoding="utf-8")


def documented_commands() -> list[str]:
    in_help = [line for command in commands.commands.values() for line in examples(command)]
    in_guide = re.findall(r"^    (.*lt-preprocess .*)$", GUIDE, re.MULTILINE)
    return list(dict.fromkeys([*in_help, *in_guide]))


def examples(command: click.Command) -> list[str]:
    assert isinstance(command, console.Command)
    return command.examples.strip().splitlines()


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, run: Run, demo_tokenizer: Path, texts: list[str]) -> Path:
    """A directory with what the examples work on."""
    directory = tmp_path_factory.mktemp("workplace")
    (directory / "gpt2").symlink_to(demo_tokenizer)
    # What the examples of grep look for.
    searched = ["Lorem ipsum dolor sit amet", "<|im_start|>user"]
    (directory / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts[:298], *searched]))
    for name in ("data", "parts"):
        (directory / name).mkdir()
    result = run("corpus.jsonl", "--tokenizer", "gpt2", "--append-eod", "-o", "data/web", cwd=directory)
    assert result.returncode == 0, result.stderr
    for part in ("parts/web-00000-of-00002_text_document", "parts/web-00001-of-00002_text_document"):
        for end in (".bin", ".idx", ".json"):
            shutil.copy(directory / f"data/web_text_document{end}", directory / f"{part}{end}")
    (directory / "parts.manifest").write_text(result.stdout)
    (directory / "tokenized").mkdir()
    np.array([5, 6, 2047, 7, 2047], np.uint16).tofile(directory / "tokenized/00000.ds")
    np.array([3, 5], np.uint64).tofile(directory / "tokenized/00000.ds.index")
    np.array([5, 6, 100257, 7, 100257], np.uint32).tofile(directory / "part-0.npy")
    (directory / "crawl").mkdir()
    (directory / "crawl/1.jsonl.zst").write_bytes(zstandard.compress((directory / "corpus.jsonl").read_bytes()))
    for shard in ("0/2", "1/2"):
        run("dedup", "crawl/1.jsonl.zst", "--method", "minhash", "--shard", shard, "-o", "data/crawl", cwd=directory)
    program = directory / "bin/lt-preprocess"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(nursery.light_python())} -m lt_preprocess "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


@pytest.mark.parametrize("command", documented_commands())
def test_documented_examples(workplace: Path, command: str) -> None:
    environment = os.environ | {"PATH": f"{workplace}/bin:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=workplace,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout or ">" in command or " verify " in command


def test_every_command_is_documented() -> None:
    for name in commands.commands:
        assert f"\n## {name}\n" in GUIDE


@pytest.mark.parametrize("name", commands.commands)
def test_help_begins_with_examples(run: Run, name: str) -> None:
    result = run(name, "-h")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Examples:\n\n  lt-preprocess {name} ")


ERRORS: dict[str, tuple[str, int, str]] = {
    "merge without parts": ("merge -o out", 2, "nothing to merge"),
    "merge without output": ("merge a", 2, "--output-prefix"),
    "no such dataset": ("shuffle nowhere -o out", 66, "nowhere.idx: no such file"),
    "no such directory": ("merge a -o no/such/out", 73, "no/such/out.idx: no such directory"),
    "no room for a shuffle": ("shuffle a -o no/such/out", 73, "no/such/out.idx: no such directory"),
    "ratios": ("split a -o out --ratios 1", 2, "--ratios 1"),
    "negative seed": ("shuffle a -o out --seed -1", 2, "--seed"),
    "no tokenizer": ("cat a", 66, "nothing says which tokenizer made it"),
    "an empty manifest": ("merge - -o out", 66, "standard input: the manifest is empty"),
}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with indexed_dataset.Writer(str(tmp_path / "a"), np.uint16) as writer:
        writer.append(np.zeros(2_000_000, np.uint16), np.full(2000, 1000), np.ones(2000, np.int64))
        writer.publish()
    return tmp_path


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_with_their_exit_code(run: Run, dataset: Path, case: str) -> None:
    command, code, message = ERRORS[case]
    result = run(*command.split(), cwd=dataset, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout) == (code, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith("lt-preprocess: error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert sorted(os.listdir(dataset)) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("command", ["merge a -o out", "shuffle a -o out", "split a -o out --ratios 1,1"])
def test_a_full_disk(run: Run, dataset: Path, command: str) -> None:
    """A limit on the size of files stands in for the disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    if command.startswith("split"):
        # All documents are equal: without others the second part would be empty.
        with indexed_dataset.Writer(str(dataset / "a"), np.uint16) as writer:
            writer.append(np.arange(2_000_000) % 65_521, np.full(2000, 1000), np.ones(2000, np.int64))
            writer.publish()
    result = run(*command.split(), cwd=dataset, preexec_fn=limit)
    assert result.returncode == 74, result.stderr
    assert sum(line.startswith("lt-preprocess: error: ") for line in result.stderr.splitlines()) == 1
    assert sorted(os.listdir(dataset)) == ["a.bin", "a.idx"]


def test_a_reader_that_leaves_early(workplace: Path) -> None:
    command = "lt-preprocess cat data/web_text_document | head -n 1"
    environment = os.environ | {"PATH": f"{workplace}/bin:{os.environ['PATH']}"}
    script = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    result = subprocess.run(script, cwd=workplace, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.count("\n")) == (141, 1)
    assert "Traceback" not in result.stderr


def test_a_directory_whose_name_is_not_utf8(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    """Its datasets are described, found up to date, verified and made into others."""
    place = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9")))
    place.mkdir()
    (place / "a.jsonl").write_text('{"text": "a document"}\n{"text": "another"}\n')
    tokenize = ("a.jsonl", "--tokenizer", str(demo_tokenizer), "-o", "out")
    assert run(*tokenize, cwd=place).returncode == 0
    assert "up to date" in run(*tokenize, cwd=place).stderr
    data = "out_text_document"
    for command in (f"verify {data}", f"shuffle {data} -o shuffled", f"merge {data} shuffled -o merged", "verify merged"):
        result = run(*command.split(), cwd=place)
        assert result.returncode == 0, (command, result.stderr)
    described = json.loads((place / "merged.json").read_bytes())["dataset"]
    assert os.fsencode(described["prefix"]) == os.fsencode(place / "merged")


@pytest.mark.parametrize("command", ["merge a -o out", "shuffle a -o out", "split a -o out --ratios 1,1"])
def test_the_output_of_another_tool_is_not_replaced_unasked(run: Run, dataset: Path, command: str) -> None:
    path = dataset / ("out_train" if command.startswith("split") else "out")
    for end in (".bin", ".idx"):
        shutil.copy(dataset / f"a{end}", f"{path}{end}")
    Path(f"{path}.bin").write_bytes(b"other")
    refused = run(*command.split(), "--dry-run", cwd=dataset)
    assert (refused.returncode, refused.stdout) == (73, "")
    assert f"{path.name}: holds documents that another tool wrote, which this command does not read" in refused.stderr
    assert "choose another output, or pass --force to replace it" in refused.stderr
    assert run(*command.split(), cwd=dataset).returncode == 73
    assert Path(f"{path}.bin").read_bytes() == b"other"
    assert run(*command.split(), "--dry-run", "--force", cwd=dataset).returncode == 0
