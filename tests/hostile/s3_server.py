"""moto's S3 server, for the fixtures `server` and `bucket`."""

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Server:
    """moto's S3 server in a process of its own; its log has every request."""

    def __init__(self, log: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        with log.open("w") as output:
            command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(log.read_text())

    def requests(self) -> list[str]:
        """So far: method and path, with its query."""
        return re.findall(r"(?:GET|PUT|POST|HEAD|DELETE) /\S*", self.log.read_text())


@contextlib.contextmanager
def running(log: Path) -> Iterator[Server]:
    """A server that s3fs, here and in child processes, finds through the environment."""
    import s3fs

    server = Server(log)
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield server
        s3fs.S3FileSystem.clear_instance_cache()
    server.process.kill()
    server.process.wait()


def new_bucket(test: str) -> str:
    """The URL of an empty bucket for a test."""
    import s3fs

    name = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:60].strip("-")
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}"


def upload(directory: Path, url: str) -> str:
    import s3fs

    s3fs.S3FileSystem().put(str(directory), url, recursive=True)
    return url


def names(url: str) -> set[str]:
    import s3fs

    store = s3fs.S3FileSystem()
    store.invalidate_cache()
    return {path.removeprefix(url.removeprefix("s3://") + "/") for path in store.find(url)}
