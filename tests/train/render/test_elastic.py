"""A job on as many nodes as there are: which numbers it takes, and that a change of ranks at a restart changes no loss."""

import os
import subprocess
from pathlib import Path

import click
import pytest
from rendering import render, shellcheck
from running import SMALL, losses, train

from lt_shared.console import BadConfig, UsageError
from lt_shared.contracts.manifest import Dataset

JOB = ("slurm", "--model", "tiny", "--save", "/fsx/run", "--mock-data")


def rendered(nodes: str, batch: int, *more: str) -> str:
    script = render(*JOB, "--nodes", nodes, "--global-batch-size", str(batch), *more)
    shellcheck(script)
    return script


@pytest.mark.parametrize(
    ("nodes", "batch", "header", "counts"),
    [
        ("1-4", 16, "1-4", "1 2 4"),
        ("1-4", 48, "1-4", "1 2 3 4"),
        # Neither of the limits.
        ("2-7", 12, "2-6", "2 3 6"),
    ],
)
def test_only_numbers_among_which_the_batch_divides(nodes: str, batch: int, header: str, counts: str) -> None:
    script = rendered(nodes, batch, "--ranks", "2")
    assert f"#SBATCH --nodes={header}\n" in script
    assert f"for count in {counts}; do" in script
    # With it, Slurm counts the tasks of the least number of nodes, and gives no more.
    assert "#SBATCH --ntasks-per-node" not in script


@pytest.mark.parametrize("more", [("--gpus-per-node", "2"), ("--instance-type", "p5.48xlarge", "--bf16")])
def test_ranks_of_an_instance_count(more: tuple[str, ...]) -> None:
    assert "for count in 1 2 4; do" in rendered("1-4", 64, *more)


def chosen(script: str, there: int) -> str:
    """What the job's own shell chooses where Slurm has given so many nodes."""
    begin, end = script.index("for count in"), script.index("profiling --pause")
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_NUM_NODES": str(there)}
    command = f"set -euo pipefail\n{script[begin:end]}\necho $nodes"
    return subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_the_job_takes_the_most_that_it_can_use() -> None:
    script = rendered("1-4", 16, "--ranks", "2")
    assert [chosen(script, there) for there in (1, 2, 3, 4)] == ["1", "2", "2", "4"]
    assert '--nodes="$nodes" --ntasks="$nodes"' in script


def test_a_fixed_number_is_as_before() -> None:
    script = render(*JOB, "--nodes", "4")
    assert "#SBATCH --nodes=4\n" in script
    assert "$nodes" not in script
    assert render(*JOB, "--nodes", "4-4") == script
    only = rendered("3-5", 16, "--ranks", "2")
    assert "#SBATCH --nodes=4\n" in only
    assert "$nodes" not in only


def test_stages_in_jobs_of_their_own_have_one_node() -> None:
    script = render(*JOB, "--nodes", "1-2", "--global-batch-size", "4", "--chain", "dependency", "--convert", "--to hf -o out")
    assert script.count("#SBATCH --nodes=1-2\n") == 1
    assert script.count("#SBATCH --nodes=1\n") == 1


def test_what_would_not_stay_the_same_is_refused() -> None:
    with pytest.raises(UsageError, match="without --global-batch-size: the batch would change"):
        render(*JOB, "--nodes", "1-4")
    with pytest.raises(BadConfig, match="no number of nodes works; on 2: global batch size 3 is not a multiple"):
        rendered("2-4", 3, "--ranks", "2")
    for nodes in ("4-1", "0-2", "1-", "a"):
        with pytest.raises(click.BadParameter):
            render(*JOB, "--nodes", nodes, "--global-batch-size", "4")


def test_losses_do_not_depend_on_the_ranks_at_each_restart(dataset: Dataset, tmp_path: Path) -> None:
    """2 ranks, then 1, then 4, without another option; the optimizer is sharded over them."""
    options = (*SMALL, "--train-iters", "9", "--lr", "1e-3", "--lr-warmup-iters", "4", "--seq-length", "32")
    options = (*options, "--use-distributed-optimizer", "--eval-iters", "0")
    changing, fixed = tmp_path / "changing", tmp_path / "fixed"
    for ranks, until in ((2, 3), (1, 6), (4, 9)):
        ended = train(*options, "--ranks", str(ranks), "--save", str(changing), "--exit-interval", str(until), dataset.prefix)
        assert ended.code == (0 if until == 9 else 75), ended.err
    assert train(*options, "--ranks", "2", "--save", str(fixed), dataset.prefix).code == 0
    expected = losses(fixed)
    assert len(expected) == 9
    assert losses(changing) == pytest.approx(expected, rel=1e-6)
