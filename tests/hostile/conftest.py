"""Fixtures of the attacks."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server
from s3_server import Server
from stranger import Stranger
from unsynced_files import unsynced_files


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """Not below pytest's directory, which others cannot enter."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can act as a second user, with setpriv of util-linux")
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o1777)
    yield Stranger(directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def unsynced() -> Iterator[None]:
    with unsynced_files():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server.running(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def bucket(server: Server, request: pytest.FixtureRequest) -> str:
    return s3_server.new_bucket(request.node.name)
