"""docs/tutorial.md, word for word: its sh and python blocks in order, in a directory that looks like the repository.

Blocks marked bash need a server, a GPU or the network; they are only parsed.
"""

import json
from pathlib import Path

import documented_blocks
import pytest
from documented_blocks import ROOT, Done

from lt_shared.data import indexed_dataset

TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
BLOCKS = documented_blocks.blocks_of(TUTORIAL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Done]]:
    directory = tmp_path_factory.mktemp("tutorial")
    return directory, documented_blocks.run_all(BLOCKS, directory, quick=True)


def test_every_block_succeeds(finished: tuple[Path, list[Done]]) -> None:
    _, runs = finished
    assert [language for language, _ in BLOCKS] == ["sh"] * 5 + ["python"]
    documented_blocks.assert_success(BLOCKS, runs)


def test_its_figures_are_those_of_the_run(finished: tuple[Path, list[Done]]) -> None:
    directory, runs = finished
    dataset = indexed_dataset.Reader(str(directory / "tutorial/data_text_document"))
    assert f"{len(dataset.document_indices) - 1:,} documents" in TUTORIAL
    plan = json.loads((directory / "tutorial/plan.json").read_text())
    assert plan["up_to_date"] is False
    assert "60 / 60" in runs[3].stdout
    records = [json.loads(line) for line in (directory / "tutorial/run/metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert losses[-1] == pytest.approx(6.3, abs=0.1) and losses[-1] < 6.53


def test_it_leaves_what_it_says(finished: tuple[Path, list[Done]]) -> None:
    directory, runs = finished
    assert (directory / "tutorial/loss.png").read_bytes().startswith(b"\x89PNG")
    assert "</html>" in (directory / "tutorial/report.html").read_text()
    assert runs[-1].stdout.startswith("A hacker is")
    assert {path.name for path in directory.iterdir()} == {"tests", "tutorial"}


def test_six_lines_are_six_lines() -> None:
    (block,) = (block for language, block in BLOCKS if language == "python")
    assert len([line for line in block.splitlines() if line]) == 6
