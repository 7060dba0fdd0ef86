"""Each tool installs from its own directory, and from wheels."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import resolution

TOOLS = [path for path in resolution.DISTRIBUTIONS if path != "shared"]


def pip(*words: str, **variables: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LT_SHARED_BY_VERSION"} | variables
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=resolution.ROOT, env=environment, check=True)


def test_one_directory_is_enough(tmp_path: Path) -> None:
    """lt-shared is on no index, and comes from beside it."""
    report = tmp_path / "report.json"
    # All else that it requires is installed.
    options = ("--dry-run", "--quiet", "--report", str(report))
    pip("install", *options, "-c", str(resolution.CONSTRAINTS), "./tools/convert")
    found = {
        package["metadata"]["name"]: package["download_info"]["url"] for package in json.loads(report.read_text())["install"]
    }
    assert found["lt-shared"] == (resolution.ROOT / "shared").as_uri()
    assert found["lt-convert"] == (resolution.ROOT / "tools/convert").as_uri()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """As they are built to be published, by distribution."""
    directory = tmp_path_factory.mktemp("wheels")
    sources = [f"./{path}" for path in resolution.DISTRIBUTIONS]
    pip(
        "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), *sources, LT_SHARED_BY_VERSION="1"
    )
    return {path.name.partition("-")[0]: zipfile.ZipFile(path) for path in directory.glob("*.whl")}


@pytest.mark.parametrize("path", resolution.DISTRIBUTIONS)
def test_a_wheel_says_what_it_is(path: str, wheels: dict[str, zipfile.ZipFile]) -> None:
    name = f"lt_{path.rpartition('/')[2]}"
    wheel = wheels[name]
    (found,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
    metadata = message_from_string(wheel.read(found).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert b"Apache License" in wheel.read(found.replace("METADATA", "licenses/LICENSE"))
    assert metadata["Author"] and metadata["Keywords"] and metadata["Classifier"] and metadata["Description-Content-Type"]
    requirements = metadata.get_all("Requires-Dist", [])
    shared = [each for each in requirements if re.match(r"lt-shared\b", each) and "extra" not in each]
    assert shared == ([] if path == "shared" else [f"lt-shared=={metadata['Version']}"])
    assert all(each.startswith((f"{name}/", f"{name}-")) for each in wheel.namelist())


@pytest.mark.parametrize("name", ["hatch_build.py", "LICENSE"])
def test_each_distribution_carries_its_own_copy(name: str) -> None:
    """A source distribution has no directory above it."""
    copies = [resolution.ROOT / path / name for path in resolution.DISTRIBUTIONS]
    assert not any(copy.is_symlink() for copy in copies)
    assert len({copy.read_bytes() for copy in copies}) == 1


def test_a_source_distribution_is_enough(tmp_path: Path) -> None:
    """It has no checkout around it, and says which lt-shared it needs."""
    environment = os.environ | {"LT_SHARED_BY_VERSION": "1"}
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    project = resolution.ROOT / "tools/monitor"
    built = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=project, env=environment, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path / built))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(found).decode())
    assert built == f"lt_monitor-{metadata['Version']}.tar.gz"
    assert f"lt-shared=={metadata['Version']}" in metadata.get_all("Requires-Dist", [])
