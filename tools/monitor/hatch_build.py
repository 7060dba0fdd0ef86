"""Build a distribution with hatchling, the newest version of CHANGELOG.md, and lt-shared as a requirement of the tools.

Between releases the changelog begins with an `unreleased` entry, and a build is a development version. `nox -s release`
compares a release with its tag. A wheel requires lt-shared by version, so that it installs after this checkout is gone. The
metadata that pip reads before it builds name the directory beside the tool, so that a tool's directory can be installed alone;
uv reads the same from `tool.uv.sources`. If pip has cloned the repository for a `git+` URL, the metadata name lt-shared in that
repository at the same commit, because pip removes its clone, and `pip freeze` would name a directory that is gone. If
LT_SHARED_BY_VERSION is set, these metadata name the version, too: beside an editable lt-shared, which pip would replace. A source
distribution has both facts in its PKG-INFO, which hatchling reads first.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# pip loads this backend before it resolves. Later it would report a conflict of other packages, or one without wheels.
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    version = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"The lt tools work with Python 3.11, 3.12 and 3.13, and this is Python {version}: install with python3.12 -m pip.")

# hatchling defines the functions that prepare metadata only outside pip.
os.environ.pop("PIP_BUILD_TRACKER", None)

import hatchling.build
from hatchling.build import build_editable as build_editable
from hatchling.build import build_sdist as build_sdist
from hatchling.build import build_wheel as build_wheel
from hatchling.build import get_requires_for_build_editable as get_requires_for_build_editable
from hatchling.build import get_requires_for_build_sdist as get_requires_for_build_sdist
from hatchling.build import get_requires_for_build_wheel as get_requires_for_build_wheel
from hatchling.metadata.plugin.interface import MetadataHookInterface

NEWEST = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
BY_VERSION, BESIDE = "LT_SHARED_BY_VERSION", "LT_SHARED_BESIDE"


class VersionAndShared(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        if "version" in metadata:
            return
        shared = next(path / "shared" for path in Path(self.root).parents if (path / "CHANGELOG.md").is_file())
        release = NEWEST.search((shared.parent / "CHANGELOG.md").read_text())
        assert release is not None
        metadata["version"] = release[1] + (".dev0" if release[2] == "unreleased" else "")
        if "dependencies" in metadata:
            return
        requirement = f"lt-shared @ {_url(shared)}" if BESIDE in os.environ else f"lt-shared=={metadata['version']}"
        metadata["dependencies"] = [*self.config["dependencies"], requirement]


def _url(shared: Path) -> str:
    """Return the URL of lt-shared: in the repository if pip has cloned it into a temporary directory, or else the directory."""
    clone, temporary = shared.parent.resolve(), Path(tempfile.gettempdir()).resolve()
    is_made_by_pip = temporary in clone.parents and clone.relative_to(temporary).parts[0].startswith("pip-")
    if not is_made_by_pip or not (clone / ".git").exists():
        return shared.as_uri()
    queries = (("config", "remote.origin.url"), ("rev-parse", "HEAD"))
    origin, commit = (
        subprocess.run(["git", "-C", clone, *query], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        for query in queries
    )
    # pip before 24.1 refuses a direct reference without a host. git takes the host "." for the root directory.
    origin = origin.replace("file:///", "file://./", 1)
    return f"git+{origin}@{commit}#subdirectory=shared"


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return _prepare("wheel", metadata_directory)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return _prepare("editable", metadata_directory)


def _prepare(kind: str, metadata_directory: str) -> str:
    """Write the metadata that an installer resolves. hatchling loads this file anew as its hook, so a variable tells the hook."""
    if BY_VERSION not in os.environ:
        os.environ[BESIDE] = "1"
    try:
        directory: str = getattr(hatchling.build, f"prepare_metadata_for_build_{kind}")(metadata_directory)
    finally:
        os.environ.pop(BESIDE, None)
    return directory
