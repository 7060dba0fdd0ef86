"""Network namespaces as the nodes of a job: each has one interface, and all are connected."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

INTERFACE = "eth0"
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip of iproute2, to make network namespaces"
)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """The names of namespaces with the addresses 10.77.0.1, 10.77.0.2 and so on."""
    prefix = f"lt{os.getpid()}"
    switch, names = f"{prefix}s", [f"{prefix}n{number}" for number in range(count)]
    try:
        for name in (switch, *names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            _ip("-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", f"p{number}", "netns", switch)
            _ip("-n", switch, "link", "set", f"p{number}", "master", "bridge")
            _ip("-n", switch, "link", "set", f"p{number}", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
