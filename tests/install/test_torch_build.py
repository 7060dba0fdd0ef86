"""Which torch the developer tasks install, and what they say of it: with two package indexes on loopback, and small wheels."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest
import torch_build

ROOT = Path(__file__).parents[2]
TORCH, CUBLAS = (
    str(*re.findall(rf"^{name}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name in ("torch", "nvidia-cublas")
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are not the test's output."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Package indexes: `pypi` with PyPI's torch, `cpu` with PyTorch's CPU build of it, `broken` with one of another checksum."""
    directory = tmp_path_factory.mktemp("indexes")
    add_wheel(directory / "cpu", "torch", f"{TORCH}+cpu", 1_000_000, "Requires-Dist: jinja2\n")
    add_wheel(directory / "cpu", "torch", "99.0.0+cpu", 1_000_000)
    add_wheel(directory / "cpu", "jinja2", "1.0", 1000)
    add_wheel(directory / "broken", "torch", f"{TORCH}+cpu", 1_000_000)
    index = directory / "broken" / "torch" / "index.html"
    index.write_text(index.read_text().replace('whl"', f'whl#sha256={"0" * 64}"'))
    add_wheel(directory / "pypi", "torch", TORCH, 2_000_000, f"Requires-Dist: nvidia-cublas=={CUBLAS}\n")
    add_wheel(directory / "pypi", "nvidia-cublas", CUBLAS, 3_000_000)
    return directory


@pytest.fixture(scope="module")
def indexes(wheels: Path) -> Iterator[str]:
    """The address of a server of the indexes."""
    handler = functools.partial(QuietHandler, directory=str(wheels))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def add_wheel(index: Path, name: str, version: str, size_bytes: int, metadata: str = "") -> None:
    """Add a package of one incompressible file to a directory that is served as a package index."""
    module = name.replace("-", "_")
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    described = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{module}/__init__.py", "")
        archive.writestr(f"{module}/weights", os.urandom(size_bytes))
        archive.writestr(f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        archive.writestr(f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{described}/RECORD", "")
    with open(folder / "index.html", "a") as page:
        page.write(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>\n')


@pytest.fixture(scope="module")
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this one's pip alone; its `bin` is all of PATH, so that no driver of this machine is found."""
    directory = tmp_path_factory.mktemp("own") / "environment"
    venv.create(directory, symlinks=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    installed = Path(pip.__file__).parent
    for folder in (installed, *installed.parent.glob("pip-*.dist-info")):
        shutil.copytree(folder, packages / folder.name)
    return directory


@pytest.fixture
def environment(own_environment: Path) -> Path:
    """That one, without what earlier tests installed in it."""
    (own_environment / "bin/nvidia-smi").unlink(missing_ok=True)
    (packages,) = (own_environment / "lib").glob("python*/site-packages")
    for folder in packages.iterdir():
        if folder.name != "pip" and not folder.name.startswith("pip-"):
            shutil.rmtree(folder)
    return own_environment


def install_torch(environment: Path, pypi: str, cpu_builds: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": pypi, "PATH": str(environment / "bin"), **more}
    command = [environment / "bin/python", ROOT / "tests/install/torch_build.py", cpu_builds]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def add_driver(folder: Path, body: str) -> None:
    """Add NVIDIA's program that lists GPUs."""
    driver = folder / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\n{body}\n")
    driver.chmod(0o755)


def installed(environment: Path) -> set[str]:
    packages = (environment / "lib").glob("python*/site-packages/*.dist-info")
    return {path.name.removesuffix(".dist-info") for path in packages if not path.name.startswith("pip-")}


def test_a_machine_without_a_gpu_takes_the_cpu_build_and_nothing_else_of_that_index(environment: Path, indexes: str) -> None:
    done = install_torch(environment, f"{indexes}/pypi", f"{indexes}/cpu")
    assert done.returncode == 0, done.stderr
    assert f"without a GPU: torch-{TORCH}+cpu-py3-none-any.whl from 127.0.0.1, 1 MB in 1 file\n" in done.stdout
    assert installed(environment) == {f"torch-{TORCH}+cpu"}
    assert install_torch(environment, f"{indexes}/nothing", f"{indexes}/nothing").stdout == ""


def test_another_version_is_replaced_by_a_cpu_build(environment: Path, indexes: str, wheels: Path) -> None:
    (packages,) = (environment / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheels / "cpu/torch/torch-99.0.0+cpu-py3-none-any.whl") as wheel:
        wheel.extractall(packages)
        # pip, which installs a wheel so, removes the files of this list.
        (packages / "torch-99.0.0+cpu.dist-info/RECORD").write_text("".join(f"{name},,\n" for name in wheel.namelist()))
    assert installed(environment) == {"torch-99.0.0+cpu"}
    assert install_torch(environment, f"{indexes}/pypi", f"{indexes}/cpu").returncode == 0
    assert installed(environment) == {f"torch-{TORCH}+cpu"}


def test_a_build_of_another_index_is_not_taken_for_one(environment: Path, indexes: str) -> None:
    """Whatever else pip is set up to say of it."""
    more = {"PIP_EXTRA_INDEX_URL": f"{indexes}/pypi", "PIP_VERBOSE": "1"}
    done = install_torch(environment, f"{indexes}/pypi", f"{indexes}/nothing", **more)
    assert done.returncode == 0, done.stderr
    assert "for a machine without a GPU" not in done.stdout
    assert installed(environment) == {f"torch-{TORCH}", f"nvidia_cublas-{CUBLAS}"}


@pytest.mark.parametrize("builds", ["unreachable", "broken"])
def test_without_cpu_builds_pypi_serves_and_its_size_is_said(environment: Path, indexes: str, builds: str) -> None:
    # Port 9, discard: nothing listens there.
    cpu_builds = "http://127.0.0.1:9/cpu" if builds == "unreachable" else f"{indexes}/{builds}"
    done = install_torch(environment, f"{indexes}/pypi", cpu_builds)
    assert done.returncode == 0, done.stderr
    assert f"no CPU build to be had from {cpu_builds}\n" in done.stdout
    assert f"torch: torch-{TORCH}-py3-none-any.whl from 127.0.0.1, 5 MB in 2 files\n" in done.stdout
    assert "PIP_FIND_LINKS=DIRECTORY" in done.stdout
    assert installed(environment) == {f"torch-{TORCH}", f"nvidia_cublas-{CUBLAS}"}


@pytest.mark.parametrize("remedy", ["PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"])
def test_the_remedies_without_cpu_builds_take_a_cpu_build(environment: Path, indexes: str, wheels: Path, remedy: str) -> None:
    place = str(wheels / "cpu/torch") if remedy == "PIP_FIND_LINKS" else f"{indexes}/cpu"
    done = install_torch(environment, f"{indexes}/pypi", "http://127.0.0.1:9/cpu", **{remedy: place})
    assert done.returncode == 0, done.stderr
    assert f"torch-{TORCH}+cpu" in installed(environment)
    assert "PIP_FIND_LINKS=DIRECTORY" not in done.stdout


@pytest.mark.parametrize(("said", "code"), [("No devices were found", 0), ("GPU 0: lost", 15), ("\\377", 0)])
def test_a_driver_without_a_gpu_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int) -> None:
    add_driver(tmp_path, f"printf '{said}\\n'\nexit {code}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not torch_build.has_gpu()


def test_a_machine_with_a_gpu_takes_pypis_torch(environment: Path, indexes: str) -> None:
    add_driver(environment / "bin", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'")
    done = install_torch(environment, f"{indexes}/pypi", f"{indexes}/cpu")
    assert done.returncode == 0, done.stderr
    assert "CPU build" not in done.stdout and "smaller" not in done.stdout
    assert installed(environment) == {f"torch-{TORCH}", f"nvidia_cublas-{CUBLAS}"}
