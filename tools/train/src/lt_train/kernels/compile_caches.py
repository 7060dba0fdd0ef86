"""Where the compilers that torch and the GPU kernels use keep machine code between runs: directories of this user alone.

torch.compile, cutlass-dsl, flash-attn-4 and quack keep it in /tmp under names that anyone can foresee, and load what they find
there: another user of the machine could have put it there. So each gets a directory that this user owns and nobody else can write
to, nor to one above it: torch.compile's in the system's temporary directory, since it is large and of this machine, the others in
the user's cache directory, which nodes may share. A directory that the user chose and others could write to is not used, either.

flash-attn-4 keeps machine code only when it is told to, as it is here. It and quack lock what they load; where a filesystem has
no locks, they wait 15 and 60 s for each kernel and then fail, so those directories are then on this machine, too.
"""

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from lt_shared.console import warn
from lt_shared.files import ownership

# Ours, of `lt_train.train.trial_memory`.
TRIALS = "LT_TRAIN_TRIALS_DIR"
# What each compiler reads, and the name of its directory.
OF_THE_MACHINE = {"TORCHINDUCTOR_CACHE_DIR": "inductor"}
OF_THE_USER = {
    "TRITON_CACHE_DIR": "triton",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention",
    "QUACK_CACHE_DIR": "quack",
    TRIALS: "trials",
}
FLASH_ATTENTION_KEEPS_CODE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"


def use_private_directories() -> None:
    """Set the variables that the compilers read, before torch is imported."""
    machine = Path(tempfile.gettempdir()) / f"lt-train-{os.geteuid()}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lt-train"
    os.environ.setdefault(FLASH_ATTENTION_KEEPS_CODE, "1")
    refused: dict[str, list[str]] = {}
    for names, base in ((OF_THE_MACHINE, machine), (OF_THE_USER, user if _has_locks(user) else machine)):
        for variable, name in names.items():
            chosen = os.environ.get(variable)
            directory = Path(chosen) if chosen else base / name
            reason = _reason_against(directory)
            if reason is not None:
                refused.setdefault(reason, []).append(str(directory))
                directory = _temporary_directory() / name
            os.environ[variable] = str(directory)
    for reason, directories in refused.items():
        warn(f"{', '.join(directories)}: not used as a cache, it may hold code of others: {reason}")


def _has_locks(directory: Path) -> bool:
    """Whether a file where the directory is, or will be, can be made and locked."""
    try:
        there = next(each for each in (directory, *directory.parents) if each.is_dir())
        with tempfile.TemporaryFile(dir=there) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _reason_against(directory: Path) -> str | None:
    """Why others could put code into a directory, which is made if there is none; None when nobody could."""
    if not directory.is_absolute():
        return "it is relative to the current directory"
    try:
        for each in reversed((directory, *directory.parents)):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        return ownership.reason_for_distrust_of_path(directory)
    except OSError as error:
        return (error.strerror or str(error)).lower()


@functools.cache
def _temporary_directory() -> Path:
    """A directory that lasts as long as this process."""
    path = Path(tempfile.mkdtemp(prefix="lt-train-code-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
