"""A checkpoint of a finished run, and one of unknown origin."""

import shutil
from pathlib import Path

import pytest

from lt_shared.contracts import checkpoint_layout
from lt_shared.files.checksums import FileChecksums


@pytest.fixture(scope="session")
def checkpoint(finished: Path) -> Path:
    """Not to be changed."""
    return checkpoint_layout.resolve_checkpoint_directory(finished / "two")


@pytest.fixture
def unrecorded(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy without the record and the checksums, as its writer may leave them out, in a run's directory `theirs`."""
    copy = Path(shutil.copytree(checkpoint, tmp_path / "theirs" / checkpoint.name))
    (copy / checkpoint_layout.RECORD).unlink()
    (copy / FileChecksums.NAME).unlink()
    return copy
