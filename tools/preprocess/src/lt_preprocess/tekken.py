"""Mistral's `tekken.json`: ranks of tokens and the pattern that cuts text, with the special tokens before them in the id space.

A token's id is its rank plus the number of special tokens. The file may list more tokens than the model has, and, up to version
7, leave the names of the special tokens to mistral-common.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from lt_preprocess import json_files, tiktoken_ranks
from lt_preprocess.vocabulary import AddedToken, Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizer_files import TokenizerFiles

END_OF_DOCUMENT = "</s>"
_NAMES_BEFORE_VERSION_8 = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises BadData when the file is malformed."""
    path = files.files[0]
    content = json_files.read_object(path)
    try:
        regex = str(content["config"]["pattern"])
        vocab_size = int(content["config"]["default_vocab_size"])
        special_count = int(content["config"]["default_num_special_tokens"])
        entries = content["vocab"][: vocab_size - special_count]
        ranks = {base64.b64decode(entry["token_bytes"], validate=True): int(entry["rank"]) + special_count for entry in entries}
        added = _special_tokens(content.get("special_tokens"), special_count)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadData(f"{path}: not a Tekken tokenizer: {type(error).__name__} {error}") from None
    _check(path, ranks, special_count, vocab_size)
    return tiktoken_ranks.with_added_tokens(ranks, added, regex, END_OF_DOCUMENT)


def _special_tokens(listed: list[dict[str, Any]] | None, count: int) -> list[AddedToken]:
    """The special tokens by id; those without a name get mistral-common's."""
    if listed is None:
        names = dict(enumerate(_NAMES_BEFORE_VERSION_8))
    else:
        names = {int(token["rank"]): str(token["token_str"]) for token in listed}
    return [AddedToken(names.get(number, f"<SPECIAL_{number}>"), number, is_special=True) for number in range(count)]


def _check(path: Path, ranks: dict[bytes, int], special_count: int, vocab_size: int) -> None:
    if len(ranks) != vocab_size - special_count or set(ranks.values()) != set(range(special_count, vocab_size)):
        raise BadData(f"{path}: the tokens do not have the ranks 0 to {vocab_size - special_count - 1}", "is the file truncated?")
    tiktoken_ranks.check_ranks(path, ranks)
