"""Each tool installs from its own directory, and from wheels."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import resolution
import uv
from packaging.specifiers import SpecifierSet

TOOLS = [path for path in resolution.DISTRIBUTIONS if path != "shared"]


def pip(*words: str | Path, directory: Path = resolution.ROOT) -> None:
    """Run pip as a user does, who does not set the variable of `nox`."""
    environment = {name: value for name, value in os.environ.items() if name != "LT_SHARED_BY_VERSION"}
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=directory, env=environment, check=True)


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
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), *sources)
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


def test_a_wheelhouse_installs_after_the_checkout_is_gone(tmp_path: Path) -> None:
    """One directory gives the wheels of the tool and of lt-shared; on a machine without network they are enough."""
    checkout, wheelhouse, environment = tmp_path / "checkout", tmp_path / "wheelhouse", tmp_path / "environment"
    for path in ("shared", "tools/convert"):
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(resolution.ROOT / path, checkout / path, ignore=leave_out)
    shutil.copy(resolution.ROOT / "CHANGELOG.md", checkout)
    options = ("--quiet", "-c", resolution.CONSTRAINTS, "--wheel-dir", wheelhouse)
    pip("wheel", "--no-build-isolation", *options, "./tools/convert", directory=checkout)
    shutil.rmtree(checkout)
    venv.create(environment, with_pip=False, symlinks=True)
    pip(
        *("--isolated", "--python", environment / "bin/python", "install", "--quiet"),
        *("--no-index", "--find-links", wheelhouse, "lt-convert"),
        directory=tmp_path,
    )
    printed = subprocess.run([environment / "bin/lt-convert", "--version"], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("lt-convert ")


@pytest.mark.parametrize("directory", ["pip-req-build-1", "clone"])
def test_a_clone_of_pip_names_the_commit(directory: str, tmp_path: Path) -> None:
    """pip removes its clone; a later installation of what `pip freeze` prints finds lt-shared in the repository."""
    repository, clone, metadata = tmp_path / "repository", tmp_path / directory, tmp_path / "metadata"
    for path in ("shared", "tools/convert"):
        shutil.copytree(resolution.ROOT / path, repository / path, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(resolution.ROOT / "CHANGELOG.md", repository)
    committer = ("-c", "user.name=lt", "-c", "user.email=lt@example.org")
    for words in (("init", "-q"), ("add", "."), (*committer, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=repository, check=True)
    subprocess.run(["git", "clone", "-q", repository.as_uri(), clone], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True).stdout.strip()
    environment = {name: value for name, value in os.environ.items() if name != "LT_SHARED_BY_VERSION"}
    code = "import sys, hatch_build; hatch_build.prepare_metadata_for_build_wheel(sys.argv[1])"
    metadata.mkdir()
    environment |= {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code, str(metadata)]
    subprocess.run(command, cwd=clone / "tools/convert", env=environment, check=True, capture_output=True)
    [file] = metadata.rglob("METADATA")
    [shared] = (line for line in file.read_text().splitlines() if line.startswith("Requires-Dist: lt-shared"))
    in_repository = f"git+file://.{repository}@{commit}#subdirectory=shared"
    url = in_repository if directory.startswith("pip-") else (clone / "shared").as_uri()
    assert shared == f"Requires-Dist: lt-shared @ {url}"


def test_uv_finds_lt_shared_again(tmp_path: Path) -> None:
    """uv keeps the metadata of the wheel that it has built, which names the version alone."""
    command = (uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-build-isolation", "--python", sys.executable)
    for number in (1, 2):
        target = tmp_path / str(number)
        subprocess.run([*command, "--target", target, "./tools/convert"], cwd=resolution.ROOT, check=True)
        assert (target / "lt_shared").is_dir() and (target / "lt_convert").is_dir()


@pytest.mark.parametrize("file", ["shared/hatch_build.py", "noxfile.py"])
def test_another_python_is_refused_in_one_line(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip shows what the backend prints, before it resolves; nox stops before it makes an environment."""
    monkeypatch.setattr(sys, "argv", ["nox", "-s", "tests"])
    source = (resolution.ROOT / file).read_text()
    for version in ((3, 10, 13), (3, 14, 0)):
        monkeypatch.setattr(sys, "version_info", version)
        with pytest.raises(SystemExit) as stopped:
            exec(compile(source, file, "exec"), {"__name__": "loaded"})
        said = str(stopped.value)
        assert "\n" not in said and "Python 3.11, 3.12 and 3.13" in said and ".".join(map(str, version)) in said
    # Python 3.8 stops at this sentence, and not at a newer syntax.
    ast.parse(source, feature_version=(3, 8))


@pytest.mark.parametrize("path", resolution.DISTRIBUTIONS)
def test_wheels_name_the_pythons_that_are_tested(path: str) -> None:
    project = tomllib.loads((resolution.ROOT / path / "pyproject.toml").read_text())["project"]
    classified = [name.rpartition(" ")[2] for name in project["classifiers"] if "Python ::" in name]
    tried = [f"3.{minor}" for minor in range(20) if SpecifierSet(project["requires-python"]).contains(f"3.{minor}.0")]
    assert tried == classified == list(resolution.PYTHONS)


@pytest.mark.parametrize("name", ["hatch_build.py", "LICENSE"])
def test_each_distribution_carries_its_own_copy(name: str) -> None:
    """A source distribution has no directory above it."""
    copies = [resolution.ROOT / path / name for path in resolution.DISTRIBUTIONS]
    assert not any(copy.is_symlink() for copy in copies)
    assert len({copy.read_bytes() for copy in copies}) == 1


def test_a_source_distribution_is_enough(tmp_path: Path) -> None:
    """It has no checkout around it, and says which lt-shared it needs."""
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    project = resolution.ROOT / "tools/monitor"
    built = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=project, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path / built))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(found).decode())
    assert built == f"lt_monitor-{metadata['Version']}.tar.gz"
    assert f"lt-shared=={metadata['Version']}" in metadata.get_all("Requires-Dist", [])
