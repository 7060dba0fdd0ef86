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

from lt_shared.console import BadData, warn
from lt_shared.files import storage, strict_json
from lt_shared.tokenizers import llama3, tekken
from lt_shared.tokenizers.byte_symbols import SYMBOL_OF_BYTE
from lt_shared.tokenizers.configuration import FLAGS, Configuration
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
        tokenizer.save(str(directory / TOKENIZER))
    return _describe(directory, maximum_length, vocab_size)


def load(files: TokenizerFiles) -> Any:
    """The `tokenizers.Tokenizer` that transformers loads from the files, with the added tokens that only companions name.

    Raises BadData for files that are no tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer

    path = next((path for path in (*files.files, *files.other_forms) if path.name == TOKENIZER), None)
    if files.kind == "tokenizer.json":
        path = files.files[0]
    if path is None:
        companions = {companion.name: companion for companion in files.companions}
        configuration = _read_json(companions[CONFIGURATION]) if CONFIGURATION in companions else {}
        tokenizer = _build(files, configuration)
        _add_tokens(tokenizer, files.configuration(), configuration, files.directory)
        return tokenizer
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more specific
        raise BadData(f"{path}: not a tokenizer: {error}") from None
    for token in files.configuration().added_tokens:
        if tokenizer.token_to_id(token["content"]) is None and token["content"]:
            tokenizer.add_tokens([AddedToken(token["content"], **{flag: token[flag] for flag in FLAGS})])
    return tokenizer


def _build(files: TokenizerFiles, configuration: Mapping[str, Any]) -> Any:
    """The tokenizer that the files define, as the `tokenizers` library has it."""
    if files.kind == "gpt2":
        return _gpt2(files, bool(configuration.get("add_prefix_space")))
    if files.kind == "tiktoken":
        return _llama3(files.files[0])
    if files.kind == "tekken":
        return _tekken(files.files[0])
    from lt_convert.tokenizers import sentencepiece_conversion

    return sentencepiece_conversion.convert(files.files[0], _prepend_scheme(configuration))


def _add_tokens(tokenizer: Any, beside: Configuration, configuration: Mapping[str, Any], directory: Path) -> None:
    """Add the added tokens of `beside` to a tokenizer, and the post-processor of `configuration` (tokenizer_config.json).

    transformers does the same when it loads the files beside a vocabulary. Warns of a token that gets another id than the files
    say. Raises BadData for an id that is no number.
    """
    from tokenizers import AddedToken

    for token in beside.added_tokens:
        text, number = token["content"], token["id"]
        if number is not None and type(number) is not int:
            raise BadData(f"added_tokens.json: {text!r:.40} has the id {number!r:.40}, which is no number", "mend the file")
        added = AddedToken(text, **{flag: token[flag] for flag in FLAGS})
        (tokenizer.add_special_tokens if token["special"] else tokenizer.add_tokens)([added])
        if number is not None and tokenizer.token_to_id(text) != number:
            warn(f"{directory.name}: the added token {text!r:.40} has id {number:,} in the tokenizer's files, and "
                 f"{tokenizer.token_to_id(text)} in {directory.name}/tokenizer.json")  # fmt: skip
    _set_template(tokenizer, configuration)


def _set_template(tokenizer: Any, configuration: Mapping[str, Any]) -> None:
    """Replace the post-processor if the configuration says whether each text gets begin and end tokens."""
    from tokenizers import processors

    if not {"add_bos_token", "add_eos_token"} & set(configuration):
        return
    begin, end = (_content(configuration.get(f"{role}_token")) for role in ("bos", "eos"))
    begin = begin if configuration.get("add_bos_token") else None
    end = end if configuration.get("add_eos_token") else None
    tokens = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys((begin, end)) if text is not None]
    if not tokens:
        if isinstance(tokenizer.post_processor, processors.TemplateProcessing):
            tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
        return
    single = f"{f'{begin} ' if begin else ''}$A{f' {end}' if end else ''}"
    pair = f"{single} {f'{begin}:1 ' if begin else ''}$B:1{f' {end}:1' if end else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


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
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
    except Exception as error:  # tokenizers raises nothing more specific
        raise BadData(f"{TOKENIZER}: not a tokenizer: {error}") from None
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
    last = max(tokenizer.get_vocab().values(), default=-1)
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


def _gpt2(files: TokenizerFiles, adds_prefix_space: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers.models import BPE

    vocabulary, merges = files.files
    _read_json(vocabulary)
    try:
        tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # tokenizers raises nothing more specific
        raise BadData(f"{vocabulary}: not a GPT-2 vocabulary: {error}") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    for token in END_OF_TEXT:
        if tokenizer.token_to_id(token) is not None:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def _llama3(path: Path) -> Any:
    """Llama 3's tokenizer: any two adjacent tokens whose bytes together are a token may merge, the lowest rank first."""
    from tokenizers import AddedToken, processors

    ranks = _read_ranks(path)
    if len(ranks) != LLAMA3_RANKS:
        raise BadData(f"{path}: {len(ranks):,} tokens, only Llama 3's tiktoken file (128,000) is known", "use its tokenizer.json")
    tokenizer = _from_ranks(ranks, LLAMA3_PATTERN, {})
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in llama3.special_tokens()])
    begin = "<|begin_of_text|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return tokenizer


def _tekken(path: Path) -> Any:
    """Mistral's tokenizer; transformers adds the begin-of-text token to each text, as in its own conversions."""
    from tokenizers import AddedToken, processors

    parsed = tekken.read(path)
    special = {name: number for number, name in enumerate(parsed.special_tokens)}
    tokenizer = _from_ranks(parsed.ids, parsed.pattern, special)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    begin = tekken.BEGIN_OF_DOCUMENT
    if begin in special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, special[begin])]
        )
    return tokenizer


def _from_ranks(ranks: dict[bytes, int], pattern: str, special: dict[str, int]) -> Any:
    """A byte-level BPE tokenizer whose ranks are its ids; `special` tokens have ids too."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    merges: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            prefix, suffix = token[:cut], token[cut:]
            if prefix in ranks and suffix in ranks:
                merges.append((rank, ranks[prefix], ranks[suffix], prefix, suffix))

    def text(token: bytes) -> str:
        return "".join(SYMBOL_OF_BYTE[byte] for byte in token)

    model = BPE(
        vocab={text(token): rank for token, rank in ranks.items()} | special,
        merges=[(text(prefix), text(suffix)) for _, _, _, prefix, suffix in sorted(merges)],
        ignore_merges=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


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
