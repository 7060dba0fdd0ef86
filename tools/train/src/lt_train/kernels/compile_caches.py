"""Set private cache directories for the compilers of torch and of the GPU kernels.

torch.compile, cutlass-dsl, flash-attn-4 and quack cache machine code in /tmp under predictable names, and load it from there:
another user of the machine could have put code there. So each compiler gets a directory that only this user can write to, and
only this user can write to its parents. torch.compile's cache is in the system's temporary directory, because it is large and
fits only this machine. The other caches are in the user's cache directory, which nodes may share. A directory chosen by the user
is refused, too, if another user could write to it or to a file below it: compilers make directories with the user's umask, which
may let the group write.

flash-attn-4 caches machine code only if a variable is set, so this module sets it. flash-attn-4 and quack lock the files that
they load. On a filesystem without locks they wait 15 and 60 s for each kernel and then fail, so all caches go to this machine if
the user's cache directory has no locks.
"""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
from pathlib import Path

from lt_shared.console import warn
from lt_shared.files import ownership

# lt-train's variable, for `lt_train.train.trial_memory`.
TRIALS = "LT_TRAIN_TRIALS_DIR"
# Maps the variable that a compiler reads to the name of its directory.
OF_THE_MACHINE = {"TORCHINDUCTOR_CACHE_DIR": "inductor"}
OF_THE_USER = {
    "TRITON_CACHE_DIR": "triton",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention",
    "QUACK_CACHE_DIR": "quack",
    # torch's kernels that are compiled when they are called.
    "PYTORCH_KERNEL_CACHE_PATH": "torch",
    TRIALS: "trials",
}
# The driver's default is below HOME. Only a directory that the user chose is checked.
IF_CHOSEN = {"CUDA_CACHE_PATH": "cuda-driver"}
FLASH_ATTENTION_KEEPS_CODE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"


def use_private_directories() -> None:
    """Set the variables that the compilers read, before torch is imported."""
    machine = Path(tempfile.gettempdir()) / f"lt-train-{os.geteuid()}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lt-train"
    os.environ.setdefault(FLASH_ATTENTION_KEEPS_CODE, "1")
    refused: dict[str, list[str]] = {}
    chosen_ones = {variable: name for variable, name in IF_CHOSEN.items() if variable in os.environ}
    for names, base in ((OF_THE_MACHINE, machine), (OF_THE_USER, user if _has_locks(user) else machine), (chosen_ones, machine)):
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
    """Whether a file can be created and locked in `directory`, or in its nearest existing parent."""
    try:
        existing = next(folder for folder in (directory, *directory.parents) if folder.is_dir())
        with tempfile.TemporaryFile(dir=existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _reason_against(directory: Path) -> str | None:
    """Create `directory` if it is missing. Return why another user could put code into it, None if nobody could."""
    if not directory.is_absolute():
        return "it is relative to the current directory"
    try:
        for folder in reversed((directory, *directory.parents)):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        return ownership.reason_for_distrust_of_path(directory) or _reason_against_content(directory)
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _reason_against_content(directory: Path) -> str | None:
    """Return which file or directory below `directory` another user could have written, None if there is none."""
    if not directory.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) or ownership.modes_are_not_kept(directory):
        # Nobody else reaches the content.
        return None
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            # Another process of this user may delete a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                reason = ownership.belongs_to_other(status, folder)
                if reason is None and not stat.S_ISLNK(status.st_mode):
                    reason = ownership.writable_by_others(status, folder)
                if reason is not None:
                    return f"{path} {reason}"
    return None


@functools.cache
def _temporary_directory() -> Path:
    """Create a directory that is removed when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="lt-train-code-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
