"""Write the tokenizer of a Hugging Face directory, as `AutoTokenizer.from_pretrained` loads it.

The original files are copied unchanged, so that a conversion back finds the tokenizer with the same hash. Without further
packages, transformers reads only `tokenizer.json`: it is made here from GPT-2's files, Llama 3's tiktoken file, Tekken and
SentencePiece.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lt_convert.tokenizers import tokenizer_json
from lt_convert.tokenizers.tokenizer_json import TokenizerJson
from lt_shared.console import BadData, warn
from lt_shared.files import storage, strict_json
from lt_shared.tokenizers import llama3, tekken
from lt_shared.tokenizers.byte_symbols import SYMBOL_OF_BYTE
from lt_shared.tokenizers.configuration import Configuration
from lt_shared.tokenizers.tokenizer_files import MODEL_CONFIGURATION, TokenizerFiles

TOKENIZER = "tokenizer.json"
CONFIGURATION = "tokenizer_config.json"
GENERATION = "generation_config.json"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>")
BEGIN_OF_TEXT = ("<|begin_of_text|>", "<s>", "<|endoftext|>")
LLAMA3_RANKS = 128_000
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write(files: TokenizerFiles, directory: Path, maximum_length: int, vocab_size: int) -> dict[str, Any]:
    """Copy the files, add what transformers needs, and return the ids of the special tokens that the files name.

    `bos_token_id` and `eos_token_id` are always among them, None where unknown. Warns if ids reach beyond the `vocab_size` tokens
    of the model.
    """
    files.copy_to(directory)
    # The converted model has a config.json of its own.
    (directory / MODEL_CONFIGURATION).unlink(missing_ok=True)
    if files.kind == "tokenizer.json":
        storage.write_bytes(directory / TOKENIZER, files.files[0].read_bytes())
    elif all(path.name != TOKENIZER for path in files.other_forms):
        configuration = _read_json(directory / CONFIGURATION) if (directory / CONFIGURATION).is_file() else {}
        tokenizer = _build(files, configuration)
        _add_tokens(tokenizer, files.configuration(), configuration, directory)
        storage.write_bytes(directory / TOKENIZER, tokenizer.to_bytes())
    return _describe(directory, maximum_length, vocab_size)


def load(files: TokenizerFiles) -> TokenizerJson:
    """The tokenizer that transformers loads from the files, with the added tokens that only companions name.

    Raises BadData for files that are no tokenizer.
    """
    path = next((path for path in (*files.files, *files.other_forms) if path.name == TOKENIZER), None)
    if files.kind == "tokenizer.json":
        path = files.files[0]
    if path is None:
        companions = {companion.name: companion for companion in files.companions}
        configuration = _read_json(companions[CONFIGURATION]) if CONFIGURATION in companions else {}
        tokenizer = _build(files, configuration)
        _add_tokens(tokenizer, files.configuration(), configuration, files.directory)
        return tokenizer
    tokenizer = tokenizer_json.read(path)
    tokenizer.add_tokens(
        [token for token in files.configuration().added_tokens if tokenizer.token_to_id(token["content"]) is None]
    )
    return tokenizer


def _build(files: TokenizerFiles, configuration: Mapping[str, Any]) -> TokenizerJson:
    """The tokenizer that the files define."""
    if files.kind == "gpt2":
        return _gpt2(files, bool(configuration.get("add_prefix_space")))
    if files.kind == "tiktoken":
        return _llama3(files.files[0])
    if files.kind == "tekken":
        return _tekken(files.files[0])
    from lt_convert.tokenizers import sentencepiece_conversion

    return sentencepiece_conversion.convert(files.files[0], _prepend_scheme(configuration))


def _add_tokens(tokenizer: TokenizerJson, beside: Configuration, configuration: Mapping[str, Any], directory: Path) -> None:
    """Add the added tokens of `beside` to a tokenizer, and the post-processor of `configuration` (tokenizer_config.json).

    transformers does the same when it loads the files beside a vocabulary. Warns of a token that gets another id than the files
    say. Raises BadData for an id that is no number.
    """
    for token in beside.added_tokens:
        text, number = token["content"], token["id"]
        if number is not None and type(number) is not int:
            raise BadData(f"added_tokens.json: {text!r:.40} has the id {number!r:.40}, which is no number", "mend the file")
        tokenizer.add_tokens([token])
        if number is not None and tokenizer.token_to_id(text) != number:
            warn(f"{directory.name}: the added token {text!r:.40} has id {number:,} in the tokenizer's files, and "
                 f"{tokenizer.token_to_id(text)} in {directory.name}/tokenizer.json")  # fmt: skip
    _set_template(tokenizer, configuration)


def _set_template(tokenizer: TokenizerJson, configuration: Mapping[str, Any]) -> None:
    """Replace the post-processor if the configuration says whether each text gets begin and end tokens."""
    if not {"add_bos_token", "add_eos_token"} & set(configuration):
        return
    begin, end = (_content(configuration.get(f"{role}_token")) for role in ("bos", "eos"))
    begin = begin if configuration.get("add_bos_token") else None
    end = end if configuration.get("add_eos_token") else None
    if begin or end or (tokenizer.content["post_processor"] or {}).get("type") == "TemplateProcessing":
        tokenizer.content["post_processor"] = tokenizer_json.template(_with_id(tokenizer, begin), _with_id(tokenizer, end))


def _with_id(tokenizer: TokenizerJson, token: str | None) -> tuple[str, int] | None:
    number = None if token is None else tokenizer.token_to_id(token)
    return None if token is None or number is None else (token, number)


def _prepend_scheme(configuration: Mapping[str, Any]) -> Literal["first", "always", "never"] | None:
    """Where transformers' Llama class, if the configuration names it, puts a space; None for SentencePiece's own way."""
    if configuration.get("tokenizer_class") not in ("LlamaTokenizer", "LlamaTokenizerFast"):
        return None
    if configuration.get("add_prefix_space") is False:
        return "never"
    return "always" if configuration.get("legacy") else "first"


def check_ids(ids: Mapping[str, Any], vocab_size: int, origin: str) -> dict[str, Any]:
    """`ids`, with None for those outside the vocabulary; the warning names `origin`, the file they come from."""
    checked = dict(ids)
    for name, value in ids.items():
        values = value if isinstance(value, list) and value else [value]
        if value is not None and not all(type(one) is int and 0 <= one < vocab_size for one in values):
            warn(f"{origin}: {name} is {value!r:.60}, the vocabulary has {vocab_size:,} tokens: left out")
            checked[name] = None
    return checked


def _describe(directory: Path, maximum_length: int, vocab_size: int) -> dict[str, Any]:
    """Write the configuration files that are missing, from the special tokens of the tokenizer; returns their ids."""
    tokenizer = tokenizer_json.read(directory / TOKENIZER)
    path = directory / CONFIGURATION
    configuration: dict[str, Any] = _read_json(path) if path.is_file() else {}
    special = {}
    for role, candidates in (("bos", BEGIN_OF_TEXT), ("eos", END_OF_TEXT)):
        present = next((token for token in candidates if tokenizer.token_to_id(token) is not None), None)
        special[role] = _content(configuration[f"{role}_token"]) if f"{role}_token" in configuration else present
    if configuration.get("pad_token"):
        special["pad"] = _content(configuration["pad_token"])
    if not configuration:
        named = {f"{role}_token": name for role, name in special.items() if name}
        configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": maximum_length} | named
        storage.write_bytes(path, (json.dumps(configuration, indent=2) + "\n").encode())
    ids = {f"{role}_token_id": tokenizer.token_to_id(name) if name else None for role, name in special.items()}
    if ids["eos_token_id"] is None:
        warn(f"the tokenizer has none of {', '.join(END_OF_TEXT)}: the model has no end-of-text token")
    last = max(tokenizer.ids().values(), default=-1)
    if last >= vocab_size:
        warn(f"the tokenizer has ids up to {last:,}, the model's vocabulary only {vocab_size:,} tokens")
    return ids


def _content(token: Any) -> str | None:
    """The text of a special token in a tokenizer's configuration."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(strict_json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise BadData(f"{path}: not a JSON object: {error}") from None


def _gpt2(files: TokenizerFiles, adds_prefix_space: bool) -> TokenizerJson:
    vocabulary, merges = files.files
    ids = _read_json(vocabulary)
    try:
        tokenizer = tokenizer_json.tokenizer(
            tokenizer_json.bpe(ids, _read_merges(merges)),
            pre_tokenizer=tokenizer_json.byte_level(adds_prefix_space),
            decoder=tokenizer_json.byte_level(),
            post_processor=tokenizer_json.byte_level(trim_offsets=False),
        )
    except (ValueError, TypeError) as error:
        raise BadData(f"{vocabulary}: not a GPT-2 vocabulary: {error}") from None
    tokenizer.add_tokens([_special(token) for token in END_OF_TEXT if tokenizer.token_to_id(token) is not None])
    return tokenizer


def _read_merges(path: Path) -> list[list[str]]:
    """Raises ValueError for a line that is no pair."""
    pairs = []
    for number, line in enumerate(path.read_bytes().decode().splitlines(), 1):
        if line.startswith("#version") or not line:
            continue
        pairs.append(line.split(" "))
        if len(pairs[-1]) != 2:
            raise ValueError(f"{path.name}, line {number}: {line!r:.40} is no pair of tokens")
    return pairs


def _special(content: str) -> dict[str, Any]:
    return tokenizer_json.added_token(content, normalized=False, special=True)


def _llama3(path: Path) -> TokenizerJson:
    """Llama 3's tokenizer: any two adjacent tokens whose bytes together are a token may merge, the lowest rank first."""
    ranks = _read_ranks(path)
    if len(ranks) != LLAMA3_RANKS:
        raise BadData(f"{path}: {len(ranks):,} tokens, only Llama 3's tiktoken file (128,000) is known", "use its tokenizer.json")
    tokenizer = _from_ranks(ranks, LLAMA3_PATTERN, {})
    tokenizer.add_tokens([_special(name) for name in llama3.special_tokens()])
    tokenizer.content["post_processor"] = tokenizer_json.template(_with_id(tokenizer, "<|begin_of_text|>"))
    return tokenizer


def _tekken(path: Path) -> TokenizerJson:
    """Mistral's tokenizer; transformers adds the begin-of-text token to each text, as in its own conversions."""
    parsed = tekken.read(path)
    special = {name: number for number, name in enumerate(parsed.special_tokens)}
    tokenizer = _from_ranks(parsed.ids, parsed.pattern, special)
    tokenizer.add_tokens([_special(name) for name in special])
    begin = tekken.BEGIN_OF_DOCUMENT
    if begin in special:
        tokenizer.content["post_processor"] = tokenizer_json.template((begin, special[begin]))
    return tokenizer


def _from_ranks(ranks: dict[bytes, int], pattern: str, special: dict[str, int]) -> TokenizerJson:
    """A byte-level BPE tokenizer whose ranks are its ids; `special` tokens have ids too."""
    merges: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            prefix, suffix = token[:cut], token[cut:]
            if prefix in ranks and suffix in ranks:
                merges.append((rank, ranks[prefix], ranks[suffix], prefix, suffix))

    def text(token: bytes) -> str:
        return "".join(SYMBOL_OF_BYTE[byte] for byte in token)

    model = tokenizer_json.bpe(
        {text(token): rank for token, rank in ranks.items()} | special,
        [(text(prefix), text(suffix)) for _, _, _, prefix, suffix in sorted(merges)],
        ignores_merges=True,
    )
    steps = [tokenizer_json.split(pattern), tokenizer_json.byte_level(add_prefix_space=False, use_regex=False)]
    pre_tokenizer = tokenizer_json.sequence("pretokenizers", steps)
    return tokenizer_json.tokenizer(model, pre_tokenizer=pre_tokenizer, decoder=tokenizer_json.byte_level())


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    numbers: set[int] = set()
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            text, number_of_rank = base64.b64decode(token, validate=True), int(rank)
            if text in ranks or number_of_rank in numbers:
                raise ValueError
            ranks[text] = number_of_rank
            numbers.add(number_of_rank)
        except ValueError:
            raise BadData(
                f"{path}, line {number}: {line[:40]!r} is not a base64 token and a rank, each for the first time"
            ) from None
    return ranks
