"""Check the directory of checkpoints: set, shared by the nodes, writable, large enough; and that loaded checkpoints exist."""

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lt_shared.files import storage
from lt_train.config.cluster import GIB
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, warning

# Filesystems of one machine. Every other filesystem counts as shared.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs", "f2fs", "devtmpfs"}
IN_CONTAINER = {"overlay", "tmpfs", "ramfs", "squashfs"}
OF_THE_KERNEL = {"proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "mqueue", "bpf"}
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
# Variables of a scheduler and of the container in which it starts a job: pyxis, and the operators of Kubernetes.
SCHEDULED = (("SLURM_JOB_ID", "ENROOT_ROOTFS"), ("PET_NNODES", "KUBERNETES_SERVICE_HOST"))


def is_set(situation: Situation) -> Iterator[Finding]:
    if situation.need("checkpointing").save is None:
        yield warning("no directory: the trained model is lost when the run ends", "--save", "add --save DIRECTORY")


def _directory(situation: Situation) -> tuple[Path, Path]:
    """SAVE, and the part of its path that exists. Raises NotChecked for no SAVE and for one that is not here."""
    save = situation.need("checkpointing").save
    if save is None or storage.is_remote(save):
        raise NotChecked("there is no --save" if save is None else "--save is a URL")
    there = Path(save).absolute()
    while not os.path.lexists(there):
        there = there.parent
    if situation.is_elsewhere and there == Path("/"):
        raise NotChecked(f"{save} is not on this machine: check there too")
    return Path(save), there


def writable(situation: Situation) -> Iterator[Finding]:
    save, there = _directory(situation)
    if there == save.absolute() and save.exists() and not save.is_dir():
        raise NotChecked("--save is not a directory")
    if not there.is_dir():
        yield error(f"{there} is not a directory", f"--save {save}", "name a directory")
    elif (kind := situation.filesystem(there)) in OF_THE_KERNEL:
        yield error(f"{there} is on {kind}, where nothing can be saved", f"--save {save}", "name a directory on a disk")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield error(f"{there} is not a directory that this user can write", f"--save {save}", "choose another, or chown it")


def space(situation: Situation) -> Iterator[Finding]:
    """Room for the checkpoints that are kept, and for the one that is written before an older one is deleted."""
    save, there = _directory(situation)
    if situation.filesystem(there) in OF_THE_KERNEL or not there.is_dir():
        raise NotChecked("no checkpoint can be written there")
    config = situation.need_config()
    settings = config.checkpointing
    free, size = shutil.disk_usage(there).free, CheckpointSize.from_config(config).total
    steps = math.ceil(config.batches.train_iters / settings.save_interval)
    count = min(steps, settings.keep_last + 1) if settings.keep_last else steps
    unit, name = (GIB, "GiB") if min(free, size) >= GIB else (2**20, "MiB")
    numbers = f"{free / unit:,.1f} {name} are free, a checkpoint takes {size / unit:,.1f}"
    if free < size:
        yield error(numbers, f"--save {save}", "make room, or choose another filesystem")
    elif free < count * size:
        yield warning(
            f"{numbers}, and the run keeps {count}",
            f"--save {save}",
            f"--keep-last {max(1, free // size - 1)}, a larger --save-interval, or another filesystem",
        )


def shared(situation: Situation) -> Iterator[Finding]:
    """By the type of the filesystem; `--network` tries it.

    In a container of a scheduler, SAVE inside of the container is an error: the job that is started again, in a new container,
    would begin at step 0 each time, for as long as somebody pays.
    """
    save, there = _directory(situation)
    point, kind = situation.mount(there)
    if kind is None:
        raise NotChecked("the table of mounts does not say what it is")
    if _is_scheduled(situation) and (kind in IN_CONTAINER or point == "/"):
        yield error(
            f"{there} is on {kind}, inside the container: the job would start from step 0 each time",
            f"--save {save}",
            "name a directory that is mounted into the container, or a URL",
        )
    elif situation.nodes > 1 and kind in LOCAL:
        yield warning(
            f"{there} is on {kind}, which each node has for itself: a checkpoint would be in pieces",
            f"--save {save}",
            "name a directory on the shared filesystem (Lustre, EFS, NFS), or s3://",
        )
    elif kind in IN_CONTAINER and _in_container(situation):
        yield warning(
            f"{there} is on {kind}, inside the container: it is gone when the job ends",
            f"--save {save}",
            "name a directory that is mounted into the container",
        )


def _is_scheduled(situation: Situation) -> bool:
    return any(all(situation.environment.get(name) for name in names) for names in SCHEDULED)


def _in_container(situation: Situation) -> bool:
    return "ENROOT_ROOTFS" in situation.environment or any(situation.path(mark).exists() for mark in CONTAINER_MARKS)


def load(situation: Situation) -> Iterator[Finding]:
    path = situation.need("checkpointing").load
    if path and not storage.is_remote(path) and not Path(path).exists():
        yield error(
            "does not exist", f"--load {path}", "name a run or a checkpoint; a run continues from its own --save by itself"
        )
