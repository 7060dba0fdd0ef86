"""Which torch the developer tasks install, and what they say of it: with two package indexes on loopback, and small wheels."""

import functools
import http.server
import os
import re
import subprocess
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH, CUBLAS = (
    str(*re.findall(rf"^{name}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name in ("torch", "nvidia-cublas")
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are not the test's output."""


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with PyPI's torch below /pypi and PyTorch's CPU build of it below /cpu."""
    directory = tmp_path_factory.mktemp("indexes")
    add_wheel(directory / "cpu", "torch", f"{TORCH}+cpu", 1_000_000)
    add_wheel(directory / "pypi", "torch", TORCH, 3_000_000, f"Requires-Dist: nvidia-cublas=={CUBLAS}\n")
    add_wheel(directory / "pypi", "nvidia-cublas", CUBLAS, 20_000_000)
    handler = functools.partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def add_wheel(index: Path, name: str, version: str, size_bytes: int, metadata: str = "") -> None:
    """Add a package of one incompressible file to a directory that is served as a package index."""
    module = name.replace("-", "_")
    folder = index / name
    folder.mkdir(parents=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    described = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{module}/__init__.py", "")
        archive.writestr(f"{module}/weights", os.urandom(size_bytes))
        archive.writestr(f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        archive.writestr(f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{described}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with pip alone; its `bin` is all of PATH, so that no driver of this machine is found."""
    venv.create(tmp_path / "environment", with_pip=True)
    return tmp_path / "environment"


def install_torch(environment: Path, pypi: str, cpu_builds: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": pypi, "PATH": str(environment / "bin")}
    command = [environment / "bin/python", ROOT / "tests/install/torch_build.py", cpu_builds]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def installed(environment: Path) -> set[str]:
    packages = (environment / "lib").glob("python*/site-packages/*.dist-info")
    return {path.name.removesuffix(".dist-info") for path in packages if not path.name.startswith(("pip-", "setuptools-"))}


def test_a_machine_without_a_gpu_takes_the_cpu_build_and_nothing_else_of_that_index(environment: Path, indexes: str) -> None:
    done = install_torch(environment, f"{indexes}/pypi", f"{indexes}/cpu")
    assert done.returncode == 0, done.stderr
    assert f"without a GPU: torch-{TORCH}+cpu-py3-none-any.whl from 127.0.0.1, 1 MB in 1 file\n" in done.stdout
    assert installed(environment) == {f"torch-{TORCH}+cpu"}
    assert install_torch(environment, f"{indexes}/nothing", f"{indexes}/nothing").stdout == ""


@pytest.mark.parametrize("builds", ["nothing", "unreachable"])
def test_without_cpu_builds_pypi_serves_and_its_size_is_said(environment: Path, indexes: str, builds: str) -> None:
    # Port 9, discard: nothing listens there.
    cpu_builds = f"{indexes}/nothing" if builds == "nothing" else "http://127.0.0.1:9/cpu"
    done = install_torch(environment, f"{indexes}/pypi", cpu_builds)
    assert done.returncode == 0, done.stderr
    assert f"no CPU build to be had from {cpu_builds}\n" in done.stdout
    assert f"torch: torch-{TORCH}-py3-none-any.whl from 127.0.0.1, 23 MB in 2 files\n" in done.stdout
    assert installed(environment) == {f"torch-{TORCH}", f"nvidia_cublas-{CUBLAS}"}


def test_a_machine_with_a_gpu_takes_pypis_torch(environment: Path, indexes: str) -> None:
    driver = environment / "bin/nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    driver.chmod(0o755)
    done = install_torch(environment, f"{indexes}/pypi", f"{indexes}/cpu")
    assert done.returncode == 0, done.stderr
    assert "CPU build" not in done.stdout
    assert installed(environment) == {f"torch-{TORCH}", f"nvidia_cublas-{CUBLAS}"}
