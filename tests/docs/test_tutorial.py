"""docs/tutorial.md, word for word: its sh and python blocks in order, in a directory that looks like the repository.

Blocks marked bash need a server, a GPU or the network; they are only parsed.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lt_shared import indexed_dataset

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)


def run_block(language: str, block: str, directory: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("LT_")} | {"HF_HUB_OFFLINE": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-c", f"set -euo pipefail\n{block}"] if language == "sh" else [sys.executable, "-c", block]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    directory = tmp_path_factory.mktemp("tutorial")
    (directory / "tests").symlink_to(ROOT / "tests")
    return directory, [run_block(language, block, directory) for language, block in BLOCKS]


def test_every_block_succeeds(finished: tuple[Path, list[subprocess.CompletedProcess[str]]]) -> None:
    _, runs = finished
    assert [language for language, _ in BLOCKS] == ["sh"] * 5 + ["python"]
    for (_, block), done in zip(BLOCKS, runs, strict=True):
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_its_figures_are_those_of_the_run(finished: tuple[Path, list[subprocess.CompletedProcess[str]]]) -> None:
    directory, runs = finished
    dataset = indexed_dataset.Reader(str(directory / "tutorial/data_text_document"))
    assert f"{len(dataset.document_indices) - 1:,} documents" in TUTORIAL
    plan = json.loads((directory / "tutorial/plan.json").read_text())
    assert plan["up_to_date"] is False
    assert "60 / 60" in runs[3].stdout
    records = [json.loads(line) for line in (directory / "tutorial/run/metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert losses[-1] == pytest.approx(6.3, abs=0.1) and losses[-1] < 6.53


def test_it_leaves_what_it_says(finished: tuple[Path, list[subprocess.CompletedProcess[str]]]) -> None:
    directory, runs = finished
    assert (directory / "tutorial/loss.png").read_bytes().startswith(b"\x89PNG")
    assert "</html>" in (directory / "tutorial/report.html").read_text()
    assert runs[-1].stdout.startswith("A hacker is")
    assert {path.name for path in directory.iterdir()} == {"tests", "tutorial"}


def test_six_lines_are_six_lines() -> None:
    (block,) = (block for language, block in BLOCKS if language == "python")
    assert len([line for line in block.splitlines() if line]) == 6
