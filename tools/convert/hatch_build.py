"""Set a distribution's version to the newest release in CHANGELOG.md, and add lt-shared to the tools' dependencies.

Between releases the changelog begins with an `unreleased` entry, and a build is a development version. `nox -s release`
compares a release with its tag. lt-shared comes from this checkout, so that a tool's directory can be installed alone. If
LT_SHARED_BY_VERSION is set, lt-shared is required by version: for wheels that are installed elsewhere, and beside an editable
lt-shared, which pip would replace. A source distribution has both facts in its PKG-INFO, which hatchling reads first.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

NEWEST = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


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
        is_beside = "LT_SHARED_BY_VERSION" not in os.environ
        requirement = f"lt-shared @ {shared.as_uri()}" if is_beside else f"lt-shared=={metadata['version']}"
        metadata["dependencies"] = [*self.config["dependencies"], requirement]
