"""Fixtures of the attacks."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stranger import Stranger


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """Not below pytest's directory, which others cannot enter."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can act as a second user, with setpriv of util-linux")
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o1777)
    yield Stranger(directory)
    shutil.rmtree(directory)
