"""The tokens of a tokenizer with their ids, and the tokenizer that has the tokens of several.

A union is the first tokenizer with the tokens that only others have as added tokens, which is how mergekit makes one: tokens of
the vocabularies first, then added tokens with their flags, each tokenizer's by id. (mergekit takes tokenizers and their tokens in
the random order of a set and a hash table, so its ids differ from run to run.)
"""

import atexit
import copy
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_convert.tokenizers import huggingface_tokenizer, tokenizer_json
from lt_convert.tokenizers.huggingface_tokenizer import CONFIGURATION, TOKENIZER
from lt_convert.tokenizers.tokenizer_json import Part, TokenizerJson
from lt_shared.console import BadData, warn
from lt_shared.files import storage, strict_json
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

# Files beside a tokenizer that name its tokens, and one that repeats the added tokens of tokenizer_config.json.
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
DECODER = "added_tokens_decoder"
# The class that transformers 5 writes for a tokenizer without one, and the name of this class that version 4 knows, too.
BACKEND, FAST = "TokenizersBackend", "PreTrainedTokenizerFast"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer for a model with `size` rows in its embedding; `ids` are the ids of its tokens below this size.

    `beyond` are the tokens of `tokenizer` without a row.
    """

    files: TokenizerFiles
    tokenizer: TokenizerJson
    size: int
    ids: Mapping[str, int]
    beyond: frozenset[str]

    def added_tokens(self) -> list[Part]:
        """Its added tokens with a row in the order of their ids, as in a tokenizer.json."""
        return [token for number, token in sorted(self.tokenizer.added.items()) if number < self.size]


def read(files: TokenizerFiles, size: int) -> Vocabulary:
    """Read a model's tokenizer. Raises BadData for files that are no tokenizer."""
    tokenizer = huggingface_tokenizer.load(files)
    ids = tokenizer.ids()
    beyond = frozenset(token for token, number in ids.items() if number >= size)
    return Vocabulary(files, tokenizer, size, {token: number for token, number in ids.items() if number < size}, beyond)


def union(vocabularies: Sequence[Vocabulary]) -> list[Part]:
    """The added tokens, as in a tokenizer.json, that the first vocabulary gets from the others, in the order of adding.

    A token that the first has in its vocabulary and another one as an added token becomes an added token, too.
    """
    added = {token["content"]: token for vocabulary in reversed(vocabularies) for token in vocabulary.added_tokens()}
    ordered = [token["content"] for vocabulary in vocabularies for token in vocabulary.added_tokens()]
    known = set(vocabularies[0].ids) | set(added)
    plain: dict[str, None] = {}
    for vocabulary in vocabularies:
        plain |= {token: None for token, _ in sorted(vocabulary.ids.items(), key=lambda item: item[1]) if token not in known}
    return [*map(tokenizer_json.added_token, plain), *(added[content] for content in dict.fromkeys(ordered))]


def extended(vocabulary: Vocabulary, tokens: Sequence[Part]) -> Vocabulary:
    """Write `vocabulary` with further added tokens, and without tokens that have no row, into a temporary directory.

    Returns it unchanged if nothing changes. Raises BadData if a token without a row belongs to another model than BPE.
    """
    tokenizer = tokenizer_json.parse(_without_beyond(vocabulary))
    tokenizer.add_tokens(tokens)
    if not vocabulary.beyond and tokenizer.content == vocabulary.tokenizer.content:
        return vocabulary
    directory = Path(tempfile.mkdtemp(prefix="lt-convert-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    place = directory / "merged-tokenizer"
    place.mkdir()
    for path in vocabulary.files.companions:
        name = vocabulary.files.relative_name(path)
        if name != ADDED_TOKENS:
            (place / name).parent.mkdir(exist_ok=True)
            storage.write_bytes(place / name, path.read_bytes())
    storage.write_bytes(place / TOKENIZER, tokenizer.to_bytes())
    _describe_added(place, tokenizer, vocabulary.beyond)
    return read(tokenizer_files.find(place / TOKENIZER), max(tokenizer.ids().values()) + 1)


def _without_beyond(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of a tokenizer.json without the tokens that have no row."""
    content = copy.deepcopy(vocabulary.tokenizer.content)
    if not vocabulary.beyond:
        return content
    warn(f"{vocabulary.files.directory}: {len(vocabulary.beyond):,} tokens have no row in the model's embedding: left out")
    model = content["model"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in vocabulary.beyond]
    inner = [token for token in model["vocab"] if token in vocabulary.beyond] if isinstance(model["vocab"], dict) else []
    if not isinstance(model["vocab"], dict) and vocabulary.size < len(model["vocab"]):
        raise BadData(
            f"{vocabulary.files.directory}: its {model['type']} vocabulary has {len(model['vocab']):,} tokens, and the model's "
            f"embedding {vocabulary.size:,} rows",
            "choose another model for the tokenizer",
        )
    for token in inner:
        del model["vocab"][token]
    if inner:
        dropped = set(inner)
        model["merges"] = [pair for pair in model["merges"] if not dropped & {*_pair(pair), "".join(_pair(pair))}]
    return content


def _pair(merge: Any) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def _describe_added(place: Path, tokenizer: TokenizerJson, beyond: frozenset[str]) -> None:
    """List the added tokens of `tokenizer` in tokenizer_config.json, and remove special tokens that are `beyond` its rows."""
    for name in (CONFIGURATION, SPECIAL_TOKENS):
        path = place / name
        if not path.is_file():
            continue
        content = dict(strict_json.loads(path.read_bytes()))
        for role, token in list(content.items()):
            text = token.get("content") if isinstance(token, dict) else token
            if role.endswith("_token") and text in beyond:
                warn(f"{name}: {role} is {text!r:.40}, which has no row in the model's embedding: left out")
                del content[role]
            if isinstance(token, list):
                content[role] = [one for one in token if (one.get("content") if isinstance(one, dict) else one) not in beyond]
        if content.get("tokenizer_class") == BACKEND:
            content["tokenizer_class"] = FAST
        if DECODER in content:
            content[DECODER] = {
                str(number): {
                    name: token[name] for name in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
                }
                for number, token in sorted(tokenizer.added.items())
            }
        storage.write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
