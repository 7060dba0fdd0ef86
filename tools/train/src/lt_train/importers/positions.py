"""Find the line of a file that sets a key, for messages about the key."""

import contextlib
import re
from pathlib import PurePath
from typing import Any

# Keys of a recipe stand below `recipes` or `training` in the file of a whole job.
PREFIXES = ("", "recipes.", "training.")
TOML_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$")
TOML_KEY = re.compile(r"\s*([\w.\"' -]+?)\s*=")
LONGEST_LINE = 10_000


def line_of(text: str, path: str, key: str) -> int | None:
    """Return the number of the line that sets `key`, a dotted path or an option of a script; None if no line does."""
    suffix = PurePath(path).suffix.lower()
    if suffix == ".toml":
        lines = toml_lines(text)
    elif suffix in (".yaml", ".yml"):
        lines = yaml_lines(text)
    else:
        return _line_of_option(text, key)
    for name in (prefix + key for prefix in PREFIXES):
        # A key within an inline table or a list has the line of what holds it.
        while name not in lines and "." in name:
            name = name.rpartition(".")[0]
        if name in lines:
            return lines[name]
    return None


def toml_lines(text: str) -> dict[str, int]:
    """Map the dotted keys of a TOML file to their first lines. Values are not parsed: a key in a text of lines appears, too."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = TOML_HEADER.match(line[:LONGEST_LINE])
        match = TOML_KEY.match(line[:LONGEST_LINE])
        if header:
            section = f"{_bare(header[1])}."
            lines.setdefault(section[:-1], number)
        elif match:
            lines.setdefault(section + _bare(match[1]), number)
    return lines


def _bare(name: str) -> str:
    return ".".join(part.strip(" \"'") for part in name.split("."))


def yaml_lines(text: str) -> dict[str, int]:
    """Map the dotted keys of a YAML file to their lines."""
    import yaml

    lines: dict[str, int] = {}

    def visit(node: Any, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            name = f"{prefix}{key.value}"
            is_new = name not in lines
            lines.setdefault(name, key.start_mark.line + 1)
            if is_new:
                visit(value, f"{name}.")

    with contextlib.suppress(yaml.YAMLError, RecursionError):
        visit(yaml.compose(text, yaml.SafeLoader), "")
    return lines


def _line_of_option(text: str, key: str) -> int | None:
    words = "[-_]".join(map(re.escape, key.split("_")))
    match = re.search(rf"--{words}(?![\w-])", text)
    return text.count("\n", 0, match.start()) + 1 if match else None
