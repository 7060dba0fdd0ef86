"""What --dry-run shows on a terminal; in a pipe it is JSON."""

import dataclasses
import json
from pathlib import Path

import pseudo_terminal
from layouts import assembled
from running import SMALL, command, environment, run

from lt_shared.contracts.manifest import Dataset
from lt_train.config import cluster
from lt_train.planner import run_table
from lt_train.planner.checkpoint_size import CheckpointSize


def on_terminal(*arguments: str) -> dict[str, str]:
    done = pseudo_terminal.run(command(*arguments), "stdout", environment=environment())
    assert (done.code, done.other) == (0, "")
    return {row[:8].strip(): row[8:] for row in done.shown.splitlines()}


def test_a_terminal_shows_a_table(dataset: Dataset, tmp_path: Path) -> None:
    run_directory = str(tmp_path / "run")
    arguments = (*SMALL, "--train-iters", "1500", "--ranks", "2", "--save", run_directory, "--dry-run", dataset.prefix)
    table = on_terminal(*arguments)
    record = json.loads(run(*arguments).out)
    assert table["model"] == f"tiny, {record['parameters']:,} parameters, float32"
    assert table["data"] == f"1 dataset(s), {dataset.tokens:,} tokens"
    assert table["steps"] == f"1,500 of 8 x 64 tokens, micro batch 2: {record['tokens']:,} tokens"
    assert table["ranks"] == "2 cpu: tensor 1 x pipeline 1 x data 2"
    assert table["memory"].startswith(f"about {record['rank_memory_bytes']['total'] / 2**30:.2f} GiB per rank")
    assert ", fits into " in table["memory"]
    assert table["start"] == "from the beginning"
    assert table["save"] == f"{run_directory}, every {record['checkpointing']['save_interval']:,} steps"
    assert not Path(run_directory).exists()


def test_without_data_and_directory() -> None:
    table = on_terminal(*SMALL, "--mock-data", "--dry-run")
    assert (table["data"], table["save"]) == ("made up", "nothing: there is no --save")


def test_a_pipeline_says_what_it_leaves() -> None:
    """Two micro batches on two ranks: a bubble of a third, and of a seventh where a third of it is left."""
    options = ("--pipeline-model-parallel-size", "2", "--micro-batch-size", "4", "--vocab-size", "128")
    for schedule, shown in (
        ("1f1b", "bubble 33.3% of a step (1F1B), ranks have 4"),
        ("zero-bubble", "14.3% of a step (zero bubble)"),
    ):
        config = assembled([*SMALL, *options, "--mock-data", "--pipeline-schedule", schedule])
        (row,) = (
            line
            for line in run_table.table(config, cluster.local_cluster("cpu", 2), False).splitlines()
            if line.startswith("pipeline")
        )
        assert shown in row


def test_a_terminal_can_have_json(dataset: Dataset) -> None:
    (line,) = on_terminal(*SMALL, "--dry-run", "--json", dataset.prefix).items()
    assert json.loads("".join(line[:1]) + line[1])["kind"] == "plan"


def test_saves_beside_training_say_what_host_memory_they_take() -> None:
    """Of a parameter in float32 the weight and Adam's two moments."""
    config = assembled([*SMALL, "--mock-data", "--save", "runs/a", "--async-save"])
    model = dataclasses.replace(config.architecture, num_layers=2000)
    many = dataclasses.replace(config, architecture=model)
    gib = 12 * model.parameters(config.padded_vocab_size) / 2**30
    expected = f"runs/a, every 1,000 steps beside training, through {gib:,.2f} GiB of host memory of all nodes together"
    assert run_table.save_row(many.checkpointing, CheckpointSize.from_config(many), "cpu") == expected
