"""The tables of docs/megatron-core.md, and what the files of the room `megatron` say of the modules that they replace."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path

from lt_train import megatron
from lt_train.megatron.upstream import Upstream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/megatron-core.md").read_text()


def rows() -> list[list[str]]:
    """The cells of every row: file, replaced, by and why, not needed from."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
    return [row for row in cells if row[0].endswith(".py")]


def listed() -> dict[str, set[str]]:
    """The replaced names, "Class.name" or "module.name", by file of lt_train."""
    names: dict[str, set[str]] = {}
    for row in rows():
        names.setdefault(row[0], set()).update(re.findall(r"`([\w.]+)`", row[1]))
    return names


def upstreams() -> dict[str, list[Upstream]]:
    """The records of the room's files, by file of lt_train."""
    records: dict[str, list[Upstream]] = {}
    for module in pkgutil.iter_modules(megatron.__path__):
        if module.name != "upstream":
            values = vars(importlib.import_module(f"{megatron.__name__}.{module.name}")).values()
            records[f"megatron/{module.name}.py"] = [value for value in values if isinstance(value, Upstream)]
    return records


def functions() -> dict[str, tuple[str, Upstream, str | Mapping[str, str] | None]]:
    """The file, the module's record and the parameters of every function, by the name on the page."""
    return {
        upstream.qualified(name): (file, upstream, signature)
        for file, records in upstreams().items()
        for upstream in records
        for name, signature in upstream.signatures.items()
    }
