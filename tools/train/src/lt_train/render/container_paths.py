"""What a job in a container reads and writes must be outside of it: when the job ends the container is gone, with all its files.

A run that saves inside starts from step 0 whenever its job is started again. The same check serves pyxis's mounts and the volume
of pods; `preflight.save_checks` has the one that each start makes.
"""

import itertools
import posixpath
from collections.abc import Sequence

from lt_shared.console import UsageError
from lt_shared.files import storage
from lt_train.render.job_spec import Job

OPTIONS = ("save", "save_local", "tensorboard_dir", "load", "data_cache_path")


def check(job: Job, directories: Sequence[str], mounted: str) -> None:
    """Raises UsageError for a path that is not below one of `directories`; `mounted` says which they are."""
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
    """As `check`, for one path."""
    if not storage.is_remote(path) and not any(is_below(path, directory) for directory in directories):
        named = " or ".join(directory for directory in directories)
        raise UsageError(f"{what} {path} is not on {mounted}", f"name a path below {named}, or a URL")


def is_below(path: str, directory: str) -> bool:
    return posixpath.normpath(path).startswith(f"{directory.rstrip('/')}/")
