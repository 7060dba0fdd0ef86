"""Set private cache directories for the compilers of torch and of the GPU kernels.

torch.compile, cutlass-dsl, flash-attn-4 and quack cache machine code in /tmp under predictable names, and load it from there:
another user of the machine could have put code there. So each compiler gets a directory that only this user can write to, and
only this user can write to its parents. torch.compile's cache is in the system's temporary directory, because it is large and
fits only this machine. The other caches are in the user's cache directory, which nodes may share. A directory chosen by the user
is refused, too, if another user could write to it.

flash-attn-4 caches machine code only if a variable is set, so this module sets it. flash-attn-4 and quack lock the files that
they load. On a filesystem without locks they wait 15 and 60 s for each kernel and then fail, so all caches go to this machine if
the user's cache directory has no locks.
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

# lt-train's variable, for `lt_train.train.trial_memory`.
TRIALS = "LT_TRAIN_TRIALS_DIR"
# Maps the variable that a compiler reads to the name of its directory.
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
        return ownership.reason_for_distrust_of_path(directory)
    except OSError as error:
        return (error.strerror or str(error)).lower()


@functools.cache
def _temporary_directory() -> Path:
    """Create a directory that is removed when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="lt-train-code-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
