"""lt-shared comes from the same checkout where there is one, so that this directory can be installed alone.

Where LT_SHARED_BY_VERSION is set it is named by its version: for what is built to be installed elsewhere, and beside an editable
lt-shared, which pip would take for another one.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SharedFromCheckout(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        shared = Path(self.root).parents[1] / "shared"
        is_beside = (shared / "pyproject.toml").is_file() and "LT_SHARED_BY_VERSION" not in os.environ
        requirement = f"lt-shared @ {shared.as_uri()}" if is_beside else f"lt-shared=={metadata['version']}"
        metadata["dependencies"] = [*self.config["dependencies"], requirement]
