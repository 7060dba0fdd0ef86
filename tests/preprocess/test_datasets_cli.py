"""The commands for finished datasets as a user meets them: every documented example runs."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from lt_preprocess.cli.datasets import commands
from lt_shared import console

Run = Callable[..., subprocess.CompletedProcess[str]]

README = (Path(__file__).parents[2] / "tools/preprocess/README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Commands for finished datasets\n")[2].partition("\n## ")[0]


def documented_commands() -> list[str]:
    in_help = [line for command in commands.commands.values() for line in examples(command)]
    in_readme = re.findall(r"^    (.*lt-preprocess .*)$", SECTION, re.MULTILINE)
    return list(dict.fromkeys([*in_help, *in_readme]))


def examples(command: click.Command) -> list[str]:
    assert isinstance(command, console.Command)
    return command.examples.strip().splitlines()


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, run: Run, demo_tokenizer: Path, texts: list[str]) -> Path:
    """A directory with what the examples work on."""
    directory = tmp_path_factory.mktemp("workplace")
    (directory / "gpt2").symlink_to(demo_tokenizer)
    (directory / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:300]))
    for name in ("data", "parts"):
        (directory / name).mkdir()
    options = ["--tokenizer", "gpt2", "--append-eod", "-o"]
    for prefix in ("parts/web-00000-of-00002", "parts/web-00001-of-00002", "data/web"):
        result = run("corpus.jsonl", *options, prefix, cwd=directory)
        assert result.returncode == 0, result.stderr
    (directory / "parts.manifest").write_text(result.stdout)
    program = directory / "bin/lt-preprocess"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lt_preprocess "$@"\n')
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
        assert f"\n### {name}\n" in SECTION


@pytest.mark.parametrize("name", commands.commands)
def test_help_begins_with_examples(run: Run, name: str) -> None:
    result = run(name, "-h")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Examples:\n\n  lt-preprocess {name} ")
