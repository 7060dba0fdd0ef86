"""Paths, names and listings of checkpoint directories, local or remote."""

import os
import re

from lt_shared.console import NoInput, UsageError, suggestions
from lt_shared.files import storage

TORCHTITAN_STEP = re.compile(r"step-(\d+)")
OLMO_STEP = re.compile(r"step(\d+)")
# Directories of steps that trainers write in place, and finish with a last file.
STEPS = (TORCHTITAN_STEP, OLMO_STEP)


def normalized(path: str) -> str:
    """Make a path absolute and resolve links, for comparisons and records; remove a URL's trailing slash.

    Raises UsageError for an empty path, which an unset shell variable leaves: it must not mean the working directory.
    """
    if not path:
        raise UsageError("an empty path", "is a variable not set?")
    path = path.removeprefix("file://")
    if storage.is_remote(path):
        return path.rstrip("/")
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        raise NoInput("the working directory does not exist any more", "cd to one that does") from None


def listing(directory: str) -> list[str]:
    """The names of the files and directories in a directory. Raises NoInput when it does not exist."""
    if storage.is_remote(directory):
        names = sorted({name.split("/")[0] for name in storage.sizes_below(directory)})
        if not names:
            raise NoInput(f"{directory}: no such directory")
        return names
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        raise NoInput(f"{directory}: no such directory", _hint_for_missing(directory)) from None
    except NotADirectoryError:
        raise NoInput(f"{directory}: not a directory") from None
    except PermissionError:
        raise NoInput(f"{directory}: permission denied") from None


def _hint_for_missing(directory: str) -> str | None:
    """Return the name that is most like a missing directory, or how to download ORGANIZATION/MODEL from the Hugging Face Hub."""
    parent, model = os.path.split(directory)
    if os.path.isdir(parent):
        return suggestions.for_missing_file(directory)
    return f"a model of the Hugging Face Hub: hf download {os.path.basename(parent)}/{model} --local-dir {model}"


def steps_directory(directory: str) -> str:
    """The parent of a `step-*` directory; any other directory itself."""
    parent, _, name = directory.rpartition("/")
    return parent or "." if TORCHTITAN_STEP.fullmatch(name) else directory


def configuration_directories(directory: str) -> list[str]:
    """Where a checkpoint's config.json may be: in it, in the directory of the `step-*` directories, or in the run's."""
    steps = steps_directory(directory)
    return [directory] if steps == directory else [directory, steps, steps.rpartition("/")[0] or "."]
