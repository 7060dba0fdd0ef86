"""Mistral's `tekken.json`: token ranks, the pre-tokenization pattern, and the special tokens, which have the lowest ids.

A token's id is its rank plus the number of special tokens. The file may list more tokens than the model has. Up to version 7 it
does not name the special tokens: their names are constants in mistral-common.
"""

import base64
import binascii
from pathlib import Path
from typing import Any, NamedTuple

from lt_shared.console import BadData
from lt_shared.files import strict_json

_MOST_SPECIAL_TOKENS = 1 << 20
BEGIN_OF_DOCUMENT, END_OF_DOCUMENT = "<s>", "</s>"
_NAMES_BEFORE_VERSION_8 = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


class Tekken(NamedTuple):
    """`special_tokens` have the ids from 0 on; `ids` has the other tokens, in the order of their merge rank."""

    pattern: str
    ids: dict[bytes, int]
    special_tokens: list[str]


def read(path: Path) -> Tekken:
    """Raises BadData when the file is malformed."""
    try:
        content = strict_json.loads(path.read_bytes())
        pattern = str(content["config"]["pattern"])
        vocab_size = int(content["config"]["default_vocab_size"])
        special_count = int(content["config"]["default_num_special_tokens"])
        if not 0 <= special_count <= _MOST_SPECIAL_TOKENS:
            raise ValueError(f"{special_count} special tokens")
        entries = content["vocab"][: vocab_size - special_count]
        ids = {base64.b64decode(entry["token_bytes"], validate=True): int(entry["rank"]) + special_count for entry in entries}
        special_tokens = _special_tokens(content.get("special_tokens"), special_count)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, binascii.Error) as error:
        raise BadData(f"{path}: not a Tekken tokenizer: {type(error).__name__} {error}") from None
    if len(ids) != vocab_size - special_count or set(ids.values()) != set(range(special_count, vocab_size)):
        raise BadData(f"{path}: the tokens do not have the ranks 0 to {vocab_size - special_count - 1}", "is the file truncated?")
    if any(bytes([byte]) not in ids for byte in range(256)):
        raise BadData(f"{path}: not every byte has a token")
    return Tekken(pattern, ids, special_tokens)


def _special_tokens(listed: list[dict[str, Any]] | None, count: int) -> list[str]:
    """The special tokens by id; those without a name get mistral-common's."""
    if listed is None:
        names = dict(enumerate(_NAMES_BEFORE_VERSION_8))
    else:
        names = {int(token["rank"]): str(token["token_str"]) for token in listed}
    return [names.get(number, f"<SPECIAL_{number}>") for number in range(count)]
