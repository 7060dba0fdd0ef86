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

# Types of local filesystems. Every other filesystem counts as shared.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs", "f2fs", "devtmpfs"}
IN_CONTAINER = {"overlay", "tmpfs", "ramfs", "squashfs"}
OF_THE_KERNEL = {"proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "mqueue", "bpf"}
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
# A scheduler's variable, and a variable of its jobs' containers: pyxis, and the operators of Kubernetes.
SCHEDULED = (("SLURM_JOB_ID", "ENROOT_ROOTFS"), ("PET_NNODES", "KUBERNETES_SERVICE_HOST"))


def is_set(situation: Situation) -> Iterator[Finding]:
    if situation.need("checkpointing").save is None:
        yield warning("no directory: the trained model is lost when the run ends", "--save", "add --save DIRECTORY")


def _directory(situation: Situation) -> tuple[Path, Path]:
    """Return SAVE and its nearest parent that exists. Raises NotChecked if SAVE is not set, a URL, or not on this machine."""
    save = situation.need("checkpointing").save
    if save is None or storage.is_remote(save):
        raise NotChecked("there is no --save" if save is None else "--save is a URL")
    existing = Path(save).absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if situation.is_elsewhere and existing == Path("/"):
        raise NotChecked(f"{save} is not on this machine: check there too")
    return Path(save), existing


def writable(situation: Situation) -> Iterator[Finding]:
    save, existing = _directory(situation)
    if existing == save.absolute() and save.exists() and not save.is_dir():
        raise NotChecked("--save is not a directory")
    if not existing.is_dir():
        yield error(f"{existing} is not a directory", f"--save {save}", "name a directory")
    elif (kind := situation.filesystem(existing)) in OF_THE_KERNEL:
        yield error(f"{existing} is on {kind}, where nothing can be saved", f"--save {save}", "name a directory on a disk")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield error(f"{existing} is not a directory that this user can write", f"--save {save}", "choose another, or chown it")


def space(situation: Situation) -> Iterator[Finding]:
    """Check the space for all kept checkpoints and for the new checkpoint that is written before an old one is deleted."""
    save, existing = _directory(situation)
    if situation.filesystem(existing) in OF_THE_KERNEL or not existing.is_dir():
        raise NotChecked("no checkpoint can be written there")
    config = situation.need_config()
    settings = config.checkpointing
    free, size = shutil.disk_usage(existing).free, CheckpointSize.from_config(config).total
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
    """Check by the type of the filesystem that the nodes share SAVE; `--network` tests it with a file.

    SAVE inside a scheduler's container is an error, because every restart would begin at step 0 in a new container, for as long
    as somebody pays.
    """
    save, existing = _directory(situation)
    point, kind = situation.mount(existing)
    if kind is None:
        raise NotChecked("the table of mounts does not say what it is")
    if _is_scheduled(situation) and (kind in IN_CONTAINER or point == "/"):
        yield error(
            f"{existing} is on {kind}, inside the container: the job would start from step 0 each time",
            f"--save {save}",
            "name a directory that is mounted into the container, or a URL",
        )
    elif situation.nodes > 1 and kind in LOCAL:
        yield warning(
            f"{existing} is on {kind}, which each node has for itself: a checkpoint would be in pieces",
            f"--save {save}",
            "name a directory on the shared filesystem (Lustre, EFS, NFS), or s3://",
        )
    elif kind in IN_CONTAINER and _in_container(situation):
        yield warning(
            f"{existing} is on {kind}, inside the container: it is gone when the job ends",
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
