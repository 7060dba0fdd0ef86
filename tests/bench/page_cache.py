"""Files as after a restart of the machine, not in memory; or all in memory."""

import os
from pathlib import Path


def drop(directory: Path) -> None:
    """All files as root, those of `directory` otherwise."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    else:
        drop_files(directory)


def drop_files(directory: Path) -> None:
    """Those of `directory` alone, which are on the disk already."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(directory: Path) -> None:
    """Read all files of `directory`, after everything that was written before is on the disk."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(16 << 20):
                    pass
