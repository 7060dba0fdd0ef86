"""The version, which is that of the newest release in CHANGELOG.md, and lt-shared as a dependency of the tools.

Between releases the changelog begins with one that is `unreleased`: what is built then is a development version of it. `nox -s
release` compares a release with its tag. lt-shared comes from the same checkout, so that this directory can be installed alone.
Where LT_SHARED_BY_VERSION is set it is named by its version: for what is built to be installed elsewhere, and beside an editable
lt-shared, which pip would take for another one. A source distribution has both in its PKG-INFO, which hatchling reads first.
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
        found = NEWEST.search((shared.parent / "CHANGELOG.md").read_text())
        assert found is not None
        metadata["version"] = found[1] + (".dev0" if found[2] == "unreleased" else "")
        if "dependencies" in metadata:
            return
        is_beside = "LT_SHARED_BY_VERSION" not in os.environ
        requirement = f"lt-shared @ {shared.as_uri()}" if is_beside else f"lt-shared=={metadata['version']}"
        metadata["dependencies"] = [*self.config["dependencies"], requirement]
