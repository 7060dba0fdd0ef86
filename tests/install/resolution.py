"""Which packages a newcomer's pip installs, and how many bytes it downloads: resolved by uv for any Python, on any machine.

uv asks the package index alone, for x86-64 Linux: wheels on this disk, pip's configuration and uv's own are left out. It
evaluates the markers of the Python that it resolves for, in 1 to 5 seconds. `pip install --dry-run --python-version` evaluates
those of the Python that runs it, and finds the pins of megatron-core for two Pythons in conflict; test_resolution.py compares uv
with pip for the Python that runs. A requirement here is the path of a distribution or of a requirements file.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uv

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
DISTRIBUTIONS = ("shared", *sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tools/*/pyproject.toml")))
# What `nox -s tests` installs, with dependencies and without.
TEST_REQUIREMENTS = (*DISTRIBUTIONS, "tests/requirements.txt")
ALONE_REQUIREMENTS = ("tests/requirements-no-deps.txt",)
DEVELOPER_REQUIREMENTS = ("docs/requirements.txt", *(f"tests/{room}/requirements.txt" for room in ("bench", "install", "lint")))
PLATFORM = "x86_64-manylinux_2_28"
# Of uv's settings, those that say how the index is reached, and not what is chosen from it.
CONNECTION = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CACHE_DIR", "UV_HTTP_TIMEOUT", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")


class Unresolvable(Exception):
    """No set of versions with wheels satisfies all requirements; the message is uv's explanation."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    size_bytes: int

    @property
    def is_cuda(self) -> bool:
        """Whether a machine without a GPU has no use for it: torch's build with CUDA, and what that one alone requires."""
        return self.name in ("torch", "triton") or self.name.startswith(("nvidia-", "cuda-"))


def every_requirement() -> list[str]:
    """All that constraints.txt is for: the distributions with every extra, the tests, the benchmarks, the linters."""
    extras = {path: tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"] for path in DISTRIBUTIONS}
    distributions = [f"{path}[{','.join(project.get('optional-dependencies', {}))}]" for path, project in extras.items()]
    return [*distributions, "tests/requirements.txt", *DEVELOPER_REQUIREMENTS]


def resolve(requirements: Iterable[str], python: str, *options: str, constraints: Path = CONSTRAINTS) -> list[Package]:
    """What pip would download for `requirements` under `constraints`; raises Unresolvable."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "pylock.toml"
        compile_requirements(requirements, python, output, "-c", str(constraints), "--format", "pylock.toml", *options)
        packages = tomllib.loads(output.read_text())["packages"]
    return [
        Package(package["name"], package["version"], download_bytes(package))
        for package in packages
        if "directory" not in package
    ]


def download_bytes(package: dict[str, Any]) -> int:
    """The size of the file that pip takes: of several wheels for this Python the compiled one, which is the largest.

    Raises Unresolvable for a package without a wheel, which a newcomer would have to compile.
    """
    if not package.get("wheels"):
        raise Unresolvable(f"{package['name']} {package['version']}: no wheel")
    return max(file["size"] for file in package["wheels"])


def compile_requirements(requirements: Iterable[str], python: str, output: Path, *options: str) -> None:
    """Write to `output` what `requirements` resolve to, preferring the versions that it holds; raises Unresolvable."""
    files, projects = [], []
    for requirement in requirements:
        (files if requirement.endswith(".txt") else projects).append(requirement)
    command = [
        *(uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate"),
        # uv would download the Python that it resolves for; it needs none.
        *("--python", sys.executable, "--no-python-downloads", "--python-version", python, "--python-platform", PLATFORM),
        *("--output-file", str(output), *options),
        # uv takes requirements from files only: those that are none go to its standard input.
        *(["-"] if projects else []),
        *files,
    ]
    environment = {name: value for name, value in os.environ.items() if name in CONNECTION or not name.startswith("UV_")}
    paths = "\n".join(f"./{project}" for project in projects)
    done = subprocess.run(command, cwd=ROOT, env=environment, input=paths, capture_output=True, text=True)
    if done.returncode:
        raise Unresolvable(f"Python {python}: {done.stderr.strip()}")
