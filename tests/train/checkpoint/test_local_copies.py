"""Nodes are lost, with their disks, and the run goes on from the copies that others have, bit for bit.

Two tasks of srun on this machine are the nodes; each has a disk of its own.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import synthetic
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.core import CheckpointingConfig
from megatron.core.dist_checkpointing.strategies import common
from running import Result, faulty, losses, quick_command, run_tasks, train

from lt_shared.console import BadConfig, CannotCreate
from lt_shared.contracts import checkpoint_layout
from lt_train.checkpoint.local import identity, nodes
from lt_train.checkpoint.object_reader import known_objects_only
from lt_train.checkpoint.shards import first_rank_files
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.process import agreement

OPTIONS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--device", "cpu", "--seq-length", "32", "--global-batch-size", "4", "--micro-batch-size", "2", "--log-interval", "1"),
    *("--eval-iters", "0", "--train-iters", "12", "--use-distributed-optimizer"),
)
# Local checkpoints of 2, 4, 6, 8; those of 5 and 10 are in SAVE.
SAVING = ("--save-interval", "5", "--save-local-interval", "2")
KILLED = "1:fsync:iter_0000008:SIGKILL:launcher"
NEWER = r"the local copies of iteration (\d+) are newer than (\S+)"


class Job:
    """The run in `place`, whose nodes are tasks of srun."""

    def __init__(self, place: Path):
        self.save = place / "save"
        self.disks = [place / "disk0", place / "disk1"]

    def run(self, fault: str | None = None, nodes: int = 2) -> list[Result]:
        shared = {
            "SLURM_STEP_NUM_TASKS": str(nodes),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{nodes})",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_JOB_ID": str(os.getpid()),
            "OMP_NUM_THREADS": "1",
            **(faulty(fault) if fault else {}),
        }
        each = [{"SLURM_PROCID": str(node), "LT_TRAIN_SAVE_LOCAL": str(self.disks[node])} for node in range(nodes)]
        ranks = ("--ranks", str(2 // nodes))
        return run_tasks(quick_command(*OPTIONS, *SAVING, *ranks, "--save", str(self.save)), [shared | task for task in each])

    def held(self, node: int) -> list[Path]:
        """The checkpoints that a node holds."""
        return sorted(self.disks[node].glob("lt-*/iter_*"))


def test_lost_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    first = job.run(KILLED)
    assert first[1].code == -9, first
    assert [[path.name for path in job.held(node)] for node in (0, 1)] == [["iter_0000006"]] * 2
    assert checkpoint_layout.read_tracker(job.save) == 5
    shards = [{path.name for path in job.held(node)[0].glob("*.distcp")} for node in (0, 1)]
    assert shards[0] == shards[1] == {"__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__1_1.distcp"}

    # A new node takes the place of the second.
    shutil.rmtree(job.disks[1])
    second = job.run(KILLED)
    assert re.findall(NEWER, second[0].err) == [("6", str(job.save / "iter_0000005"))]
    (node0,), (node1,) = job.held(0), job.held(1)
    assert "successfully loaded checkpoint" in second[0].err

    # Each has a file that the other lacks, or that is damaged there.
    damaged = node0 / "__1_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (node1 / "__0_0.distcp").unlink()
    third = job.run("0:rename:.iter_0000008:SIGKILL:launcher")
    assert third[0].code == -9, third
    assert re.findall(NEWER, third[0].err) == [("6", str(job.save / "iter_0000005"))]
    assert "a local copy is damaged" in third[0].err

    # What the nodes hold together is a checkpoint.
    whole = tmp_path / node0.name
    for node in (0, 1):
        shutil.copytree(job.held(node)[0], whole, dirs_exist_ok=True)
    assert checkpoint_layout.damage(whole) is None
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with known_objects_only(whole):
            tensors = dist_checkpointing.load_plain_tensors(str(whole))
    finally:
        torch.distributed.destroy_process_group()
    assert any("exp_avg" in name for name in tensors)

    # Both are lost. A disk fails later, and the run does not care.
    for disk in job.disks:
        shutil.rmtree(disk)
    last = job.run("1:fsync:.received:ENOSPC:rank")
    assert [task.code for task in last] == [0, 0], last
    assert "the local copies of iteration 6 are on no node any more, or not all of them" in last[0].err
    assert f"the run continues from {job.save}/iter_0000005, and 1 step(s) are lost" in last[0].err
    assert re.search(r"no local checkpoint of iteration \d+: .*No space left on device", last[0].err)
    assert not any(job.held(node) for node in (0, 1))
    assert not (job.save / identity.FILE).exists()
    assert train(*OPTIONS, "--ranks", "2", "--save", str(tmp_path / "still")).code == 0
    assert losses(job.save) == losses(tmp_path / "still")
    recovered = re.findall(
        r"recovered in ([\d.]+) s: iteration (\d) was the last before the failure, (\d) the first after", last[0].err
    )
    assert [numbers[1:] for numbers in recovered] == [("8", "6")]
    assert 0 < float(recovered[0][0]) < 600


def test_disks_that_fail(tmp_path: Path) -> None:
    """At the start, when a directory is made, when the first rank writes the index, and when the copies get their names."""
    job = Job(tmp_path)
    moments = ("1:mkdir:disk1:EROFS", "1:mkdir:.iter_0000002:EROFS", "0:fsync:.metadata:ENOSPC", "1:rename:.iter_0000008:EROFS")
    done = job.run(",".join(f"{moment}:rank" for moment in moments))
    assert [task.code for task in done] == [0, 0], done
    assert re.findall(r"no local checkpoint (.*?): .*(Read-only|No space)", done[0].err) == [
        ("for now", "Read-only"),
        ("of iteration 8", "Read-only"),
    ]
    assert re.findall(r"saved local checkpoint from iteration +(\d+)", done[0].err) == ["6"]
    assert checkpoint_layout.read_tracker(job.save) == 12
    assert not [*job.disks[0].iterdir(), *job.disks[1].iterdir()]


def test_the_first_ranks_own_files_fail(tmp_path: Path) -> None:
    """The other ranks are in a collective then: it comes to it, too, and says so later."""
    has_common = hasattr(common, "TorchCommonSaveStrategy")
    files = ["common.pt", "metadata.json"] if has_common else ["metadata.json"]
    for name in files:
        (tmp_path / name).mkdir()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with first_rank_files.collect_failures() as kept:
            if has_common:
                dist_checkpointing.save({"iteration": 4}, str(tmp_path), async_sharded_save=True)
            serialization.save_config(CheckpointingConfig("torch_dist", 1), str(tmp_path))
    finally:
        torch.distributed.destroy_process_group()
    assert len(kept) == len(files)
    assert "metadata.json" in str(kept[-1])
    with pytest.raises(IsADirectoryError):
        serialization.save_config(CheckpointingConfig("torch_dist", 1), str(tmp_path))


OF_FOURS = (*OPTIONS, "--save-interval", "4", "--ranks", "1")


def interrupted(job: Job) -> tuple[str, ...]:
    """A run of one node with a checkpoint of 4 in SAVE and a local one of 6; returns the options for its copies."""
    local = ("--save-local", str(job.disks[0]), "--save-local-interval", "3")
    assert train(*OF_FOURS, *local, "--save", str(job.save), **faulty("0:fsync:iter_0000008:SIGKILL:launcher")).code == -9
    assert [path.name for path in job.held(0)] == ["iter_0000006"]
    return local


def test_a_run_that_went_on_without_its_copies(tmp_path: Path) -> None:
    """What it has trained since is not in them."""
    job = Job(tmp_path)
    local, options = interrupted(job), (*OF_FOURS, "--save", str(job.save))
    without = train(*options, "--lr", "1e-5", "--min-lr", "0", "--exit-interval", "5")
    assert without.code == 75, without.err
    assert "local copies of iteration 6 are not used without --save-local, the run continues from iteration 4" in without.err
    assert not list(job.disks[0].iterdir())
    again = train(*options, *local)
    assert again.code == 0, again.err
    assert not re.search(NEWER, again.err)
    assert f"from {job.save} at iteration 5" in again.err
    assert not list(job.disks[0].iterdir())
    assert not list(job.save.glob(f"*{identity.FILE}"))


def test_copies_that_no_file_names_any_more(tmp_path: Path) -> None:
    """Deleted on purpose, damaged, and of a SAVE that was moved, which could have been copied as well."""
    job = Job(tmp_path)
    local = interrupted(job)
    for place in (job.save, job.disks[0]):
        shutil.copytree(place, tmp_path / "before" / place.name)
    named, moved = job.save / identity.FILE, tmp_path / "moved"
    found = {}
    for name, change in (
        ("deleted", named.unlink),
        ("damaged", lambda: named.write_text("{")),
        ("moved", lambda: job.save.rename(moved)),
    ):
        change()
        found[name] = train(*OF_FOURS, *local, "--save", str(moved if name == "moved" else job.save))
        assert found[name].code == 0, found[name].err
        assert not re.search(NEWER, found[name].err)
        assert bool(list(job.disks[0].iterdir())) == (name == "moved")
        if name != "moved":
            for place in (job.save, job.disks[0]):
                shutil.rmtree(place)
                shutil.copytree(tmp_path / "before" / place.name, place)
    assert identity.FILE not in found["deleted"].err
    assert f"{named}: is damaged, no local copies count" in found["damaged"].err
    assert f"names the local copies of {job.save}, which do not count in {moved}" in found["moved"].err
    (left,) = job.disks[0].iterdir()
    assert f"or delete {left.with_suffix('')}.*" in found["moved"].err


def test_a_directory_that_machines_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(agreement, "from_first_rank", lambda value: value)
    monkeypatch.setattr(agreement, "reduce_maximum", lambda value, where: value)
    monkeypatch.setattr(
        agreement, "gather_after_collective", lambda value, where: [[host, [0, 1], value[2]] for host in ("n1", "n2")]
    )
    with pytest.raises(BadConfig, match=r"is the same directory on n1 and n2"):
        nodes.find(tmp_path / "shared", torch.device("cpu"))
    assert not list((tmp_path / "shared").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(CannotCreate, match=r"^--save-local .*/file/disk: a part of the path is not a directory"):
        nodes.find(tmp_path / "file/disk", torch.device("cpu"))


def test_the_bound_of_a_nodes_disk() -> None:
    """By hand: of each parameter in bf16 the weight has 2 bytes, which one node may hold alone, and the optimizer's state 12."""
    config = synthetic.plan("--mock-data", "--ranks", "4", "--bf16", "--use-distributed-optimizer", "--global-batch-size", "32")
    parameters = config.architecture.parameters(config.padded_vocab_size)
    assert CheckpointSize.from_config(config).local_set(4) == parameters * (2 + 2 * 12 // 4)
    assert CheckpointSize.from_config(config).local_set(1) == parameters * 14
    alone = synthetic.plan("--mock-data", "--ranks", "4", "--bf16", "--global-batch-size", "32")
    assert CheckpointSize.from_config(alone).local_set(4) == parameters * 14
