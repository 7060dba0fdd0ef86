"""The rules by which classes of transformers 5 replace the normalizer, the pre-tokenizer and the model of a tokenizer.json.

These are the classes with WordPiece, Unigram and SentencePiece's BPE. `deviation` names the first rule of a file that its class
would replace by another rule; a file without a deviation is encoded as it stands.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lt_shared.tokenizers.sentencepiece_proto import SPACE

Steps = list[dict[str, Any]]
Rules = tuple[Steps, Steps]

_PRECOMPILED = {"type": "Precompiled"}
_WORDS = {"type": "WhitespaceSplit"}
_UNNOTICED = frozenset(["trim_offsets", "precompiled_charsmap", "str_rep"])


def _replaced(regex: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}


_ONE_SPACE = _replaced(" {2,}", " ")
_QUOTES: Steps = [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
_NO_LINES: Steps = [
    _replaced(r"\s{2,}|[\n\r\t]", " "),
    {"type": "NFC"},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]


def _metaspace(config: Mapping[str, Any], without: str = "never") -> dict[str, Any]:
    scheme = without if config.get("add_prefix_space") is False else "always"
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}


def _without_accents(config: Mapping[str, Any], keeps_accents: bool, lowers: bool) -> Steps:
    steps: Steps = [] if config.get("keep_accents", keeps_accents) else [{"type": "NFKD"}, {"type": "StripAccents"}]
    return steps + ([{"type": "Lowercase"}] if config.get("do_lower_case", lowers) else [])


def _words(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return charsmap, [_WORDS, _metaspace(config)]


def _mbart(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return [], [_WORDS, _metaspace({})]


def _t5(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return charsmap, [_WORDS, _metaspace({})]


def _one_space(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return [*charsmap, _ONE_SPACE], [_metaspace({})]


def _pegasus(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return [*(charsmap or [_replaced(r"\n", " ")]), _ONE_SPACE], [_metaspace({})]


def _nllb(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return [*charsmap, _ONE_SPACE] if charsmap else [], [_metaspace({})]


def _albert(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return [*_QUOTES, *_without_accents(config, False, True), *charsmap], [_WORDS, _metaspace(config)]


def _xlnet(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    accents = _without_accents({"do_lower_case": config.get("do_lower_case", False)}, False, False)
    return [*_QUOTES, *accents, *charsmap], [_WORDS, _metaspace({})]


def _deberta(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    lower: Steps = [{"type": "Lowercase"}] if config.get("do_lower_case") else []
    cuts: Steps = [{"type": "Punctuation", "behavior": "Isolated"}] if config.get("split_by_punct") else []
    return lower + _NO_LINES, [*cuts, _metaspace(config, "first")]


def _barthez(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    return _NO_LINES, [_metaspace(config)]


def _bert(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    return [normalizer], [{"type": "BertPreTokenizer"}]


def _gemma(config: Mapping[str, Any], charsmap: Steps) -> Rules:
    # The class also cuts at spaces, but no space is left: "deviation" takes both spellings.
    return [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}], []


_UNIGRAM = {"type": "Unigram", "byte_fallback": False}
_WORDPIECE = {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
_BPE = {"type": "BPE", "byte_fallback": False, "ignore_merges": False, "fuse_unk": True}
_RECIPES: dict[str, tuple[Callable[[Mapping[str, Any], Steps], Rules], dict[str, Any]]] = {
    **dict.fromkeys(("BertTokenizer", "MPNetTokenizer"), (_bert, _WORDPIECE)),
    "XLMRobertaTokenizer": (_words, _UNIGRAM | {"unk_id": 3}),
    "CamembertTokenizer": (_words, _UNIGRAM),
    "MBartTokenizer": (_mbart, _UNIGRAM | {"unk_id": 3}),
    "MBart50Tokenizer": (_one_space, _UNIGRAM | {"unk_id": 3}),
    "PegasusTokenizer": (_pegasus, _UNIGRAM),
    "T5Tokenizer": (_t5, _UNIGRAM | {"unk_id": 2}),
    "AlbertTokenizer": (_albert, _UNIGRAM | {"unk_id": 1}),
    "XLNetTokenizer": (_xlnet, _UNIGRAM | {"unk_id": 0}),
    "DebertaV2Tokenizer": (_deberta, _UNIGRAM),
    "BarthezTokenizer": (_barthez, _UNIGRAM | {"unk_id": 3}),
    "NllbTokenizer": (_nllb, _BPE),
    "GemmaTokenizer": (_gemma, _BPE | {"byte_fallback": True}),
}
NAMES = frozenset(_RECIPES)
# Unless the file says otherwise. Old files do not name the type of their model.
_MODEL_DEFAULTS = {"byte_fallback": False, "ignore_merges": False}


def deviation(name: str, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str | None:
    """Name the rule of `tokenizer`, the content of a tokenizer.json, that class `name` replaces by another; None without one.

    `config` is the content of tokenizer_config.json. Raises KeyError, TypeError or AttributeError for a malformed file.
    """
    rules, expected_model = _RECIPES[name]
    normalizer, cutter = _steps(tokenizer.get("normalizer")), _steps(tokenizer.get("pre_tokenizer"))
    charsmap = [_PRECOMPILED] if _PRECOMPILED in normalizer else []
    expected_normalizer, expected_cutter = rules(config, charsmap)
    model = tokenizer["model"]
    stored_model = _MODEL_DEFAULTS | {"type": _kind(model)} | model
    if any(stored_model.get(key) != value for key, value in expected_model.items()):
        return f"the settings of its {stored_model['type']} model"
    if cutter[:1] == [_WORDS]:
        # The cut at white space drops all of it anyway.
        normalizer = [step for step in normalizer if step != _ONE_SPACE]
    if normalizer != expected_normalizer:
        return "how it normalizes texts"
    if name == "GemmaTokenizer" and [step["type"] for step in cutter] == ["Split"]:
        cutter = [] if cutter[0]["pattern"] == {"String": " "} and not cutter[0]["invert"] else cutter
    if cutter != expected_cutter:
        return "how it cuts texts"
    return None


def _kind(model: Mapping[str, Any]) -> str:
    """Return the type of a model that does not name it."""
    if isinstance(model["vocab"], list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


def _steps(stored: Any) -> Steps:
    """List the steps of a normalizer or a pre-tokenizer, those in sequences too, in one spelling."""
    if stored is None:
        return []
    inner = stored.get("normalizers", stored.get("pretokenizers"))
    if stored["type"] == "Sequence":
        return [step for part in inner for step in _steps(part)]
    step = {key: value for key, value in stored.items() if key not in _UNNOTICED}
    if step["type"] == "Metaspace":
        has_space = step.pop("add_prefix_space", True)
        step = {"prepend_scheme": "always" if has_space else "never", "split": True} | step
    return [step]
