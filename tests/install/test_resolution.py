"""constraints.txt can be installed by strangers: from the package index alone, under every supported Python."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pinned_versions
import pytest
import resolution
from packaging.utils import canonicalize_name

NO_LOCAL_WHEELS = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT")


@pytest.mark.parametrize("python", resolution.PYTHONS)
def test_everything_resolves_to_what_is_pinned(python: str) -> None:
    packages = resolution.resolve(resolution.every_requirement(), python)
    packages += resolution.resolve(resolution.ALONE_REQUIREMENTS, python, "--no-deps")
    assert {package.name: package.version for package in packages}.items() <= pinned_versions.of(python).items()
    # torch of PyPI, not a build that lies on this disk.
    assert {"nvidia-cublas", "triton"} < {package.name for package in packages}


@pytest.mark.parametrize("python", resolution.PYTHONS)
def test_what_a_newcomer_downloads(python: str, record_property: Callable[[str, object], None]) -> None:
    packages = resolution.resolve(resolution.TEST_REQUIREMENTS, python)
    packages += resolution.resolve(resolution.ALONE_REQUIREMENTS, python, "--no-deps")
    total = sum(package.size_bytes for package in packages) / 1e6
    cuda = sum(package.size_bytes for package in packages if package.is_cuda) / 1e6
    summary = f"nox -s tests with Python {python} from PyPI: {total:,.0f} MB, of which torch with CUDA {cuda:,.0f} MB"
    record_property("summary", summary)
    readme = (resolution.ROOT / "README.md").read_text()
    assert f"CUDA from PyPI, a download of {cuda / 1e3:.1f} GB" in readme
    assert f"All other packages are {(total - cuda) / 1e3:.1f} GB" in readme
    (triton,) = (package.size_bytes for package in packages if package.name == "triton")
    assert f"download Triton, {triton / 1e9:.1f} GB" in readme


def test_what_uv_is_set_up_with_chooses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, override = tmp_path / "uv.toml", tmp_path / "override.txt"
    settings.write_text('[pip]\nindex-url = "http://127.0.0.1:9/simple"\n')
    override.write_text("rich==14.0.0\n")
    expected = resolution.resolve(["shared"], "3.12")
    for name, value in {"CONFIG_FILE": settings, "OVERRIDE": override, "FIND_LINKS": tmp_path, "NO_INDEX": "1"}.items():
        monkeypatch.setenv(f"UV_{name}", str(value))
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2020-01-01")
    assert resolution.resolve(["shared"], "3.12") == expected


def test_a_package_that_must_be_compiled_is_found(tmp_path: Path) -> None:
    """numpy 1.26.0 has no wheel for Python 3.13."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("numpy==1.26.0\n")
    with pytest.raises(resolution.Unresolvable, match=r"numpy 1\.26\.0: no wheel"):
        resolution.resolve(["shared"], "3.13", constraints=constraints)


def test_a_pin_that_contradicts_torch_is_found(tmp_path: Path) -> None:
    """PyPI's torch requires one version of triton exactly; CPU builds, which some machines have on disk, require none."""
    constraints = tmp_path / "constraints.txt"
    lines = resolution.CONSTRAINTS.read_text().splitlines()
    constraints.write_text("\n".join("triton==3.9.0" if line.startswith("triton==") else line for line in lines))
    with pytest.raises(resolution.Unresolvable, match="triton"):
        resolution.resolve(resolution.TEST_REQUIREMENTS, resolution.PYTHONS[0], constraints=constraints)


def test_pip_finds_the_same(tmp_path: Path) -> None:
    """For the Python that runs: what pip takes for enough in the environment that it made for the tests, which has torch's CPU
    build, and what it would install for torch where it has no wheels but the index's."""
    constrained = ["-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "-c", str(resolution.CONSTRAINTS)]
    files = [resolution.ROOT / path / "pyproject.toml" for path in resolution.DISTRIBUTIONS]
    projects = [tomllib.loads(file.read_text())["project"]["name"] for file in files]
    done = subprocess.run(
        [sys.executable, *constrained, "--no-index", "-r", "tests/requirements.txt", *projects],
        cwd=resolution.ROOT, env=environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    enough = re.findall(r"^Requirement already satisfied: ([\w.-]+).* \((\S+)\)$", done.stdout, re.MULTILINE)
    report = tmp_path / "report.json"
    # Reads the metadata inside remote wheels, where an index does not serve it by itself, without downloading them.
    from_index = ["--ignore-installed", "--quiet", "--report", str(report), "--use-feature=fast-deps", "torch"]
    subprocess.run([sys.executable, *constrained, *from_index], cwd=resolution.ROOT, env=environment(), check=True)
    metadata = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    found = {canonicalize_name(name): version.partition("+")[0] for name, version in enough}
    found |= {canonicalize_name(package["name"]): package["version"] for package in metadata}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = {package.name: package.version for package in resolution.resolve(resolution.TEST_REQUIREMENTS, python)}
    assert {name: version for name, version in found.items() if name not in projects} == expected


def environment() -> dict[str, str]:
    """That of a pip which asks the package index alone."""
    others = {name: value for name, value in os.environ.items() if name not in NO_LOCAL_WHEELS}
    return others | {"PIP_CONFIG_FILE": os.devnull}
