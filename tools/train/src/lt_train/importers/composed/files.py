"""Read and merge the YAML files that a configuration names. They lie in its repository, and their number is bounded."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData, NoInput
from lt_shared.files import storage, strict_yaml

MOST_FILES = 60
LARGEST = 2_000_000
# ${NAME:default} of Primus and ${oc.env:NAME,default} of OmegaConf, for an empty environment.
ENVIRONMENT = re.compile(r"\$\{(?:oc\.env:\s*)?([A-Z][A-Z0-9_]*)\s*[:,]\s*([^${}]*)\}")


class Files:
    """YAML files below the directory `root`. Raises BadData for more than MOST_FILES."""

    def __init__(self, root: Path):
        self._root, self._count = root.resolve(), 0

    def read(self, path: Path) -> dict[str, Any]:
        """Read a file of the repository. Raises BadData for one outside of it, or one that has no keys."""
        self._count += 1
        if self._count > MOST_FILES:
            raise BadData(f"more than {MOST_FILES} files in one configuration")
        shown = path.resolve().relative_to(self._root) if self._root in path.resolve().parents else path
        if shown is path:
            raise BadData(f"{path}: outside of {self._root}", "only files beside the configuration are read")
        if path.exists() and (not path.is_file() or path.stat().st_size > LARGEST):
            raise BadData(f"{shown}: no regular file of up to {LARGEST:,} bytes")
        try:
            content = strict_yaml.loads(storage.read_bytes(str(path)).decode())
        except NoInput:
            raise BadData(f"it needs {shown}, which is not there", "import it in a checkout of its repository") from None
        except (ValueError, UnicodeDecodeError) as error:
            raise BadData(f"{shown}: not YAML: {error}") from None
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise BadData(f"{shown}: not a configuration: it has no keys")
        filled: dict[str, Any] = fill_environment(content)
        return filled


def fill_environment(value: Any, depth: int = 0) -> Any:
    """Replace references to environment variables by their defaults, as in an empty environment."""
    if depth > 60:
        raise BadData("nested too deeply for a configuration")
    if isinstance(value, dict):
        return {str(key): fill_environment(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [fill_environment(entry, depth + 1) for entry in value]
    if isinstance(value, str) and "${" in value:
        whole = ENVIRONMENT.fullmatch(value)
        if whole:
            return strict_yaml.loads(whole[2]) if whole[2].strip() else ""
        return ENVIRONMENT.sub(lambda match: match[2].strip(), value)
    return value


def merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `update`, section by section."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
