"""Refuse jobs that read or write inside their container, because the container and its files are deleted when the job ends.

A run that saves inside its container starts from step 0 at every restart of the job. The check serves pyxis's mounts and the
volume of pods; `preflight.save_checks` repeats it whenever a run starts.
"""

import itertools
import posixpath
from collections.abc import Sequence

from lt_shared.console import UsageError
from lt_shared.files import storage
from lt_train.render.job_spec import Job

OPTIONS = ("save", "save_local", "tensorboard_dir", "load", "data_cache_path")


def check(job: Job, directories: Sequence[str], mounted: str) -> None:
    """Raise UsageError if a path of the job is not below one of `directories`, which the message calls `mounted`."""
    for name in OPTIONS:
        if job.options[name]:
            check_path(f"--{name.replace('_', '-')}", str(job.options[name]), directories, mounted)
    for path in job.data_paths:
        check_path("DATA", path, directories, mounted)
    for stage, words in (("preprocess", job.preprocess), ("convert", job.convert)):
        for option, value in itertools.pairwise(words or ()):
            if option in ("-o", "--output"):
                check_path(f"--{stage} '{option} ...'", value, directories, mounted)


def check_path(what: str, path: str, directories: Sequence[str], mounted: str) -> None:
    """Raise UsageError if `path` is not below one of `directories`. The message calls the path `what`."""
    if not storage.is_remote(path) and not any(is_below(path, directory) for directory in directories):
        directory_names = " or ".join(directory for directory in directories)
        raise UsageError(f"{what} {path} is not on {mounted}", f"name a path below {directory_names}, or a URL")


def is_below(path: str, directory: str) -> bool:
    return posixpath.normpath(path).startswith(f"{directory.rstrip('/')}/")
