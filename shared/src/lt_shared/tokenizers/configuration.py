"""Read the files beside a tokenizer's main file: added tokens, end of text, prefix space and class.

`tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` are read with the precedence of transformers 5: the two
others count only where tokenizer_config.json has no `added_tokens_decoder`.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_shared.files import strict_json
from lt_shared.tokenizers import transformers_classes

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PREFIX_SPACE_CLASSES = frozenset(
    [
        *("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "BlenderbotTokenizer"),
        *("GPTNeoXTokenizer", "CodeGenTokenizer", "Qwen2Tokenizer", "DebertaTokenizer", "MvpTokenizer"),
    ]
)
"""Classes of transformers that put a space before texts when tokenizer_config.json says so, whatever tokenizer.json says."""

_PREFIX_SPACE = re.compile(rb'"add_prefix_space"\s*:\s*true')
_DIGIT_STEPS = re.compile(rb'"type"\s*:\s*"Digits"')
_DIGIT_CLASSES = _PREFIX_SPACE_CLASSES - {"BlenderbotTokenizer", "Qwen2Tokenizer"} | {"WhisperTokenizer"}
"""Classes that cut texts by ByteLevel's pattern, which does not cut digits apart."""

# Named tokens of a class where no file names others.
_DEFAULT_TOKENS: dict[str | None, dict[str, Any]] = {
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "GPTNeoXTokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>") | {"pad_token": "<|padding|>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        name: f"<{name.removesuffix('_token')}>" for name in NAMED_TOKENS if name not in ("sep_token", "cls_token")
    },
}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_SPACE_STEPS = re.compile(rb'"type"\s*:\s*"(Metaspace|Replace)"')
_ADDED_TOKENS = re.compile(rb'"added_tokens"\s*:\s*(?=\[)')
_LISTED_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Configuration:
    """`added_tokens` are objects as in a tokenizer.json, in the order of adding; one whose `id` is None gets the next.

    `class_name` is without a final "Fast", and an alias stands for its class. None stands for what no file says. `has_decoder` is
    whether an `added_tokens_decoder` states the flags of the tokens, which then replace those in a tokenizer.json. `named_tokens`
    are the tokens of NAMED_TOKENS, with their names.
    """

    class_name: str | None = None
    eos_token: str | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    added_tokens: tuple[dict[str, Any], ...] = ()
    has_decoder: bool = False
    named_tokens: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)

    def missing_from(self, content: bytes, quoted: bool) -> list[dict[str, Any]]:
        """The added tokens whose text a tokenizer's main file does not hold; in JSON texts are `quoted`."""
        return [token for token in self.added_tokens if not _holds(content, token["content"], quoted)]

    def unlisted_in(self, content: bytes) -> list[dict[str, Any]]:
        """The added tokens that a tokenizer.json does not list as such, whether its vocabulary has them or not."""
        listed = {token["content"] for token in _listed_tokens(content)}
        return [token for token in self.added_tokens if token["content"] not in listed and token["content"]]

    def changed_prefix_spaces(self, content: bytes) -> int:
        """Count the pre-tokenizer steps of a tokenizer.json whose `add_prefix_space` contradicts this configuration."""
        if self.add_prefix_space is None or self.class_name not in _PREFIX_SPACE_CLASSES:
            return 0
        if not self.add_prefix_space and not _PREFIX_SPACE.search(content):
            return 0
        try:
            pre_tokenizer = strict_json.loads(content).get("pre_tokenizer") or {}
        except (ValueError, AttributeError):
            return 0
        return sum(step["add_prefix_space"] != self.add_prefix_space for step in byte_level_steps(pre_tokenizer))

    def changed_digits(self, content: bytes) -> bool:
        """Whether a tokenizer.json cuts digits apart before ByteLevel's pattern, which the class does not."""
        if self.class_name not in _DIGIT_CLASSES or not _DIGIT_STEPS.search(content):
            return False
        try:
            pre_tokenizer = strict_json.loads(content).get("pre_tokenizer") or {}
            steps = pre_tokenizer.get("pretokenizers", [])
            kinds = [step.get("type") for step in steps]
            return bool(kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"] and steps[1].get("use_regex", True))
        except (ValueError, AttributeError, KeyError, TypeError):
            return False

    def changed_metaspace(self, content: bytes) -> str | None:
        """The `prepend_scheme` that LlamaTokenizer takes from its configuration, where a tokenizer.json has another rule."""
        if self.class_name != "LlamaTokenizer":
            return None
        stored = _stored_scheme(content)
        scheme = "never" if self.add_prefix_space is False else "always" if self.legacy else "first"
        return None if stored in (None, scheme) else scheme

    def changed_flags(self, content: bytes) -> list[dict[str, Any]]:
        """The tokens that the bytes of a tokenizer.json list with other flags than the configuration gives them.

        The end of a text is special, also where only its name says so: no document may contain it as text.
        """
        stated = {token["content"]: token for token in self.added_tokens}
        changed = []
        for token in _listed_tokens(content):
            configured = stated.get(token["content"])
            if configured is None:
                continue
            is_stated = self.has_decoder and configured["id"] is not None
            flags = {flag: configured[flag] if is_stated else bool(token.get(flag)) for flag in FLAGS}
            flags["special"] = flags["special"] or token["content"] == self.eos_token
            if any(bool(token.get(flag)) != flags[flag] for flag in FLAGS):
                changed.append(token | flags)
        return changed


def byte_level_steps(pre_tokenizer: Any) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer that spell bytes, and may put a space before texts."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if isinstance(pre_tokenizer, dict) else []
    return [step for step in steps if isinstance(step, dict) and step.get("type") == "ByteLevel" and "add_prefix_space" in step]


def _stored_scheme(content: bytes) -> str | None:
    """Return where the bytes of a tokenizer.json put a space before texts, as `prepend_scheme`; None for a malformed file."""
    if not _SPACE_STEPS.search(content):
        return None
    try:
        return prepend_scheme(strict_json.loads(content))
    except (ValueError, AttributeError, TypeError):
        return None


def prepend_scheme(tokenizer: Mapping[str, Any]) -> str | None:
    """Return where a tokenizer.json made from a SentencePiece model puts a space before texts.

    This is a scheme of Metaspace, or "normalizer" for a space before every text; None for a file of another kind.
    """
    normalizer, cutter = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    steps = normalizer.get("normalizers", [normalizer]) if normalizer else []
    kinds = [step.get("type") for step in steps]
    if not kinds and cutter and cutter.get("type") == "Metaspace":
        return str(cutter.get("prepend_scheme", "always"))
    if cutter is None and kinds in (["Prepend", "Replace"], ["Replace"]):
        return "normalizer" if len(kinds) > 1 else "unprefixed"
    return None


def _listed_tokens(content: bytes) -> list[dict[str, Any]]:
    """The added tokens in a tokenizer.json, without parsing its vocabulary; [] for a file that is malformed."""
    match = _ADDED_TOKENS.search(content)
    size = _LISTED_BYTES
    while match is not None:
        # The list is short, and decoding all that follows it takes longer than reading the list.
        part = content[match.end() : match.end() + size]
        try:
            return _first_list(part, "replace" if size < len(content) else "strict")
        except (ValueError, RecursionError):
            if size >= len(content):
                return []
            size *= 8
    return []


@functools.lru_cache(maxsize=4)
def _first_list(part: bytes, errors: str) -> list[dict[str, Any]]:
    """Read the list of added tokens that `part` begins with. Kept: several methods ask for Gemma 3's 6,415 tokens."""
    listed, _ = json.JSONDecoder().raw_decode(part.decode(errors=errors))
    return [token for token in listed if isinstance(token, dict) and isinstance(token.get("content"), str)]


def _holds(content: bytes, token: str, quoted: bool) -> bool:
    if not quoted:
        return token.encode(errors="replace") in content
    return any(json.dumps(token, ensure_ascii=ascii_only).encode(errors="replace") in content for ascii_only in (False, True))


def read(companions: Iterable[Path], is_sentencepiece: bool = False, model: Mapping[str, Any] | None = None) -> Configuration:
    """Raises BadData for a file that is no JSON object, or has a token that is none.

    `model` is the content of the config.json beside a tokenizer.json, which can decide the class.
    Beside a SentencePiece model, `additional_special_tokens` of special_tokens_map.json do not count: transformers puts the
    model's control symbols in their place.
    """
    files = {path.name: path for path in companions}
    config = _object(files.get("tokenizer_config.json"))
    decoder = config.get("added_tokens_decoder")
    mapped = {} if decoder is not None else _object(files.get("special_tokens_map.json"))
    name = config.get("tokenizer_class")
    class_name = transformers_classes.plain_name(name) if model is None else transformers_classes.chosen_class(name, model)
    named = _DEFAULT_TOKENS.get(class_name, {}) | config | mapped
    names = [*(named.get(name) for name in NAMED_TOKENS), *_model_tokens(config, mapped)]
    specials = _special_tokens([*names, *_extra_tokens(config, mapped, is_sentencepiece)])
    path = files.get("tokenizer_config.json")
    if decoder is not None:
        listed = [_token(path, token, number) for number, token in _items(path, decoder)]
    else:
        path = files.get("added_tokens.json")
        listed = [
            {"content": content, "special": content in specials, "normalized": content not in specials, "id": number}
            for content, number in sorted(_object(path).items(), key=lambda item: str(item[1]).zfill(12))
        ]
    # A token with a name such as eos_token is special, whatever its list says.
    named_contents = {_content(token) for token in names}
    listed = [token | {"special": True} if token["content"] in named_contents else token for token in listed]
    listed_contents = {token["content"] for token in listed}
    listed += [{"content": content, **flags, "id": None} for content, flags in specials.items() if content not in listed_contents]
    prefix, legacy = config.get("add_prefix_space"), config.get("legacy")
    return Configuration(
        class_name,
        _content(named.get("eos_token")),
        prefix if isinstance(prefix, bool) else None,
        legacy if isinstance(legacy, bool) else None,
        tuple(dict.fromkeys(FLAGS, False) | token for token in listed),
        decoder is not None,
        tuple((name, content) for name in NAMED_TOKENS if (content := _content(named.get(name))) is not None),
    )


def special_token(content: str) -> dict[str, Any]:
    """A token as a name such as eos_token makes it of a text, in the form of `Configuration.added_tokens`."""
    return {flag: flag == "special" for flag in FLAGS} | {"content": content, "id": None}


def _model_tokens(config: Mapping[str, Any], mapped: Mapping[str, Any]) -> list[Any]:
    """The tokens with a name of their model's own: `image_token` and the like, or in an object."""
    # In tokenizer_config.json an object is a token only if it says so.
    stated = {key: value for key, value in config.items() if not isinstance(value, dict) or "__type" in value}
    tokens = {key: value for key, value in {**stated, **mapped}.items() if key.endswith("_token") and key not in NAMED_TOKENS}
    objects = [
        config_part.get(key)
        for config_part in (config, mapped)
        for key in ("model_specific_special_tokens", "extra_special_tokens")
    ]
    return [
        *tokens.values(),
        *(value for config_part in objects if isinstance(config_part, dict) for value in config_part.values()),
    ]


def _extra_tokens(config: Mapping[str, Any], mapped: Mapping[str, Any], is_sentencepiece: bool) -> list[Any]:
    """The special tokens without a name. `additional_special_tokens` count where no `extra_special_tokens` do."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if "extra_special_tokens" in mapped:
        extra = [*(extra if isinstance(extra, list) else []), *(mapped["extra_special_tokens"] or [])]
    elif not extra and "extra_special_tokens" not in config and not is_sentencepiece:
        extra = mapped.get("additional_special_tokens") or []
    return extra if isinstance(extra, list) else []


def _special_tokens(values: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """The tokens that a name such as eos_token has, and those in lists, with their flags."""
    token_by_content: dict[str, dict[str, Any]] = {}
    for value in values:
        if content := _content(value):
            flags = {flag: value[flag] for flag in FLAGS if flag in value} if isinstance(value, dict) else {}
            token_by_content.setdefault(content, {"normalized": False} | flags | {"special": True})
    return token_by_content


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _items(path: Path | None, decoder: Any) -> list[tuple[int, Any]]:
    if not isinstance(decoder, dict) or not all(number.isdecimal() and len(number) < 12 for number in decoder):
        raise BadData(f"{path}: its added_tokens_decoder is malformed")
    return sorted(((int(number), token) for number, token in decoder.items()), key=lambda item: item[0])


def _token(path: Path | None, token: Any, number: int) -> dict[str, Any]:
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise BadData(f"{path}: its added token {number} has no text")
    flags = {flag: bool(token[flag]) for flag in FLAGS if flag in token}
    return {"normalized": not flags.get("special", False)} | flags | {"content": token["content"], "id": number}


def _object(path: Path | None) -> dict[str, Any]:
    return {} if path is None else read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """Raises BadData when the file is not a JSON object, or one that the libraries could read in another way."""
    try:
        content = strict_json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadData(f"{path}: not a JSON object")
    return content
