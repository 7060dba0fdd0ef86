"""JSON files of tokenizers: read and checked for the little that all readers rely on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_shared.tokenizers import configuration as beside
from lt_shared.tokenizers.configuration import read_object as read_object


def check_ids(path: Path, ids: dict[Any, Any]) -> dict[str, int]:
    """Tokens and their ids, when they are that, and there are any."""
    if not ids:
        raise BadData(f"{path}: its vocabulary is empty")
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids.values()):
        token, number = next(item for item in ids.items() if type(item[1]) is not int or not 0 <= item[1] < 2**31)
        raise BadData(f"{path}: token {token!r} has id {number!r}")
    if len(set(ids.values())) < len(ids):
        raise BadData(f"{path}: several tokens share an id")
    return ids


def configuration(companions: Iterable[Path]) -> dict[str, Any]:
    """The content of a `tokenizer_config.json` beside the tokenizer; empty when there is none."""
    for path in companions:
        if path.name == "tokenizer_config.json":
            return read_object(path)
    return {}


def eos_token(companions: Iterable[Path]) -> str | None:
    """The `eos_token` that the files beside the tokenizer name."""
    return beside.read(companions).eos_token
