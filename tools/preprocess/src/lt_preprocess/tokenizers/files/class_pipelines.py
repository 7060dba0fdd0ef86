"""Refuse a tokenizer.json if its tokenizer class in transformers 5 would replace the rules of the file by different ones.

GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer and others read vocabulary and merges from a tokenizer.json but build their own
pre-tokenizer and normalizer. RobertaTokenizer and others add `<s>` and `</s>`. If the file has different rules or lacks these
tokens, AutoTokenizer and the file give different ids: the directory is ambiguous and refused. The flag `fix_mistral_regex`
replaces the first pattern of a Mistral model's tokenizer.
"""

import dataclasses
import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_preprocess.tokenizers.files import class_recipes, json_files
from lt_preprocess.tokenizers.split_patterns import QWEN2
from lt_shared.console import BadData
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL
from lt_shared.tokenizers.configuration import prepend_scheme
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

_ENDS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_ROBERTA = {
    **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
    **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_BERT_ENDS = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
# Each digit by itself, and the rest by ByteLevel's pattern.
_DIGITS_APART = json.dumps(
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ],
    },
    sort_keys=True,
)
_QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")


@dataclasses.dataclass(frozen=True)
class ClassRules:
    """The rules that a class of transformers puts in place of the rules in tokenizer.json.

    `pattern` is None for ByteLevel's pattern (`use_regex`). The class adds the `tokens` that no file names or contains.
    `rebuilds` is False if the class keeps the rules of the file and only adds tokens.
    """

    pattern: str | None = None
    normalizers: tuple[str, ...] = ()
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rebuilds: bool = True


_RULES = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer", "WhisperTokenizer"), ClassRules(tokens=_ENDS)),
    "GPTNeoXTokenizer": ClassRules(None, ("NFC",), {**_ENDS, "pad_token": "<|padding|>"}),
    "Qwen2Tokenizer": ClassRules(QWEN2, ("NFC",)),
    "Qwen3_5Tokenizer": ClassRules(_QWEN35, ("NFC",)),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), ClassRules(tokens=_ROBERTA)
    ),
    "DebertaTokenizer": ClassRules(tokens=_BERT | _BERT_ENDS),
    "CohereTokenizer": ClassRules(
        _DIGITS_APART,
        ("NFC",),
        {
            "bos_token": "<BOS_TOKEN>",
            "eos_token": "<|END_OF_TURN_TOKEN|>",
            "unk_token": "<UNK>",
            "sep_token": "<SEP>",
            "pad_token": "<PAD>",
            "cls_token": "<CLS>",
            "mask_token": "<MASK_TOKEN>",
        },
    ),
    "FNetTokenizer": ClassRules(tokens=_BERT | _BERT_ENDS | {"unk_token": "<unk>", "pad_token": "<pad>"}, rebuilds=False),
    "ConvBertTokenizer": ClassRules(tokens=_BERT, rebuilds=False),
}
# They add a space or a token of their own to texts, lower the case, spell bytes by other ids, look for phrases, or read no
# tokenizer.json at all.
_REFUSED = frozenset(
    [
        *("BlenderbotTokenizer", "CLIPTokenizer", "NougatTokenizer", "LukeTokenizer", "LayoutLMv3Tokenizer", "Tipsv2Tokenizer"),
        *("ByT5Tokenizer", "MyT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer", "DiaTokenizer", "EsmcTokenizer"),
        *("BartphoTokenizer", "BertGenerationTokenizer", "BertJapaneseTokenizer", "BertweetTokenizer", "BioGptTokenizer"),
        *("BlenderbotSmallTokenizer", "ClvpTokenizer", "CpmTokenizer", "CpmAntTokenizer", "CTRLTokenizer", "EsmTokenizer"),
        *("FlaubertTokenizer", "FSMTTokenizer", "GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer", "M2M100Tokenizer"),
        *("MarianTokenizer", "MgpstrTokenizer", "PhobertTokenizer", "PLBartTokenizer", "ProphetNetTokenizer"),
        *("RoCBertTokenizer", "SiglipTokenizer", "Speech2TextTokenizer", "SpeechT5Tokenizer", "TapasTokenizer"),
        *("VitsTokenizer", "Wav2Vec2CTCTokenizer", "XLMTokenizer", "BigBirdTokenizer", "CodeLlamaTokenizer"),
        *("FunnelTokenizer", "HerbertTokenizer", "LasrTokenizer", "LayoutLMv2Tokenizer", "LayoutXLMTokenizer"),
        *("MarkupLMTokenizer", "MLukeTokenizer", "OpenAIGPTTokenizer", "ReformerTokenizer", "RemBertTokenizer"),
        *("RoFormerTokenizer", "SeamlessM4TTokenizer", "Siglip2Tokenizer", "SplinterTokenizer", "UdopTokenizer"),
        *("VideoPrismTokenizer", "XGLMTokenizer"),
    ]
)
_MISTRAL_MODELS = ("mistral", "mistral3", "voxtral", "ministral", "pixtral", None)
_MISTRAL_SIGN = r"[^\s\p{L}\p{N}]+[\r\n/]*|"
_UNKNOWN = "unknown"


def check(files: TokenizerFiles) -> None:
    """Raise BadData for a tokenizer.json whose pre-tokenizer transformers would replace by another one."""
    configured = files.configuration()
    path = files.directory / "config.json"
    model = json_files.read_object(path) if path.is_file() else {}
    config = json_files.configuration(files.companions)
    has_fix = config.get("fix_mistral_regex") is True and path.is_file() and _is_old_mistral(model)
    name = configured.class_name
    has_rules = name in _RULES or name in class_recipes.NAMES or name == "LlamaTokenizer"
    if config.get("auto_map") or not (has_fix or has_rules or name in _REFUSED):
        return
    tokenizer = json_files.read_object(files.files[0])
    pattern = _pattern(tokenizer.get("pre_tokenizer"))
    directory = str(files.directory)
    new = f"transformers.AutoTokenizer.from_pretrained('{directory}').save_pretrained('NEW')"
    if has_fix and pattern is not None and _MISTRAL_SIGN not in pattern:
        raise BadData(
            f"{directory}: fix_mistral_regex in tokenizer_config.json replaces the pattern of tokenizer.json",
            f'python -c "import transformers; {new}" and --tokenizer NEW',
        )
    if name in _REFUSED:
        raise BadData(
            f"{files.files[0]}: {name} of transformers 5 has rules of its own in place of this file's: the ids would differ",
            f'python -c "import transformers; {new}", set tokenizer_class to TokenizersBackend in NEW/tokenizer_config.json, and'
            " --tokenizer NEW",
        )
    if name in _RULES:
        _check_rules(files.files[0], tokenizer, pattern, name, config, new)
    elif name is not None and has_rules:
        _check_recipe(files.files[0], tokenizer, name, config, new)


def _check_rules(
    path: Path, tokenizer: Mapping[str, Any], pattern: str | None, name: str, config: Mapping[str, Any], new: str
) -> None:
    """Raise BadData if the rules of `tokenizer` differ from the rules of class `name`, or if it lacks a token the class adds."""
    rules = _RULES[name]
    remedy = (
        "set tokenizer_class to TokenizersBackend in tokenizer_config.json to cut as the file says, or "
        f'python -c "import transformers; {new}" and --tokenizer NEW'
    )
    if rules.rebuilds and pattern not in (rules.pattern, _UNKNOWN) and not _cuts_alike(tokenizer, pattern, rules):
        raise BadData(f"{path}: {name} of transformers 5 cuts texts otherwise than this file: the ids would differ", remedy)
    normalizers = _normalizers(tokenizer.get("normalizer"))
    if rules.rebuilds and normalizers not in (rules.normalizers, _UNKNOWN):
        raise BadData(f"{path}: {name} of transformers 5 normalizes texts otherwise than this file: the ids would differ", remedy)
    if rules.rebuilds and _model(tokenizer).get("ignore_merges") is True:
        raise BadData(f"{path}: {name} of transformers 5 leaves out ignore_merges of this file: the ids would differ", remedy)
    lacking = dict.fromkeys(
        token for kind, token in rules.tokens.items() if kind not in config and not _has_token(tokenizer, token)
    )
    if lacking:
        raise BadData(
            f"{path}: {name} of transformers 5 adds its own tokens {', '.join(lacking)} to this file: the ids would differ",
            remedy,
        )


def _check_recipe(path: Path, tokenizer: Mapping[str, Any], name: str, config: Mapping[str, Any], new: str) -> None:
    """Raise BadData if class `name` replaces a rule of `tokenizer` that is not a byte-level BPE."""
    try:
        if name == "LlamaTokenizer":
            # `directories` gives the file the class's rule about the space before texts.
            model = _model(tokenizer)
            is_known = model.get("byte_fallback") is True and not model.get("ignore_merges")
            deviation = None if is_known and prepend_scheme(tokenizer) else "its rules"
        else:
            deviation = class_recipes.deviation(name, config, tokenizer)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return
    if deviation is not None:
        raise BadData(
            f"{path}: {name} of transformers 5 replaces {deviation}: the ids would differ",
            "set tokenizer_class to TokenizersBackend in tokenizer_config.json to encode as the file says, or "
            f'python -c "import transformers; {new}" and --tokenizer NEW',
        )


def _cuts_alike(tokenizer: Mapping[str, Any], pattern: str | None, rules: ClassRules) -> bool:
    """Whether the class, which does not cut digits apart, gives the ids of the file for digits of ASCII.

    It does if no token has a digit beside another character, as in SmolLM2 and StarCoder2, whose vocabularies were trained with
    digits apart. `directories` gives the file the rule of the class, which matters for characters such as U+2460: a token can
    hold a space and the first bytes of such a digit.
    """
    if rules.pattern is not None or pattern != _DIGITS_APART:
        return False
    vocabulary = _model(tokenizer).get("vocab")
    if not isinstance(vocabulary, dict):
        return False
    # Added tokens are matched before the text is cut, so no merge makes them.
    added = _added_contents(tokenizer)
    return not any(_joins_digits(token) for token in vocabulary if token not in added)


def _model(tokenizer: Mapping[str, Any]) -> Mapping[str, Any]:
    model = tokenizer.get("model")
    return model if isinstance(model, dict) else {}


def _added_contents(tokenizer: Mapping[str, Any]) -> frozenset[str]:
    """Return the texts of the added tokens: a set, because `_cuts_alike` looks up every token of the vocabulary in it."""
    added = tokenizer.get("added_tokens")
    contents = (token.get("content") for token in added if isinstance(token, dict)) if isinstance(added, list) else ()
    return frozenset(content for content in contents if isinstance(content, str))


def _joins_digits(token: str) -> bool:
    """Whether a token in GPT-2's byte symbols has a digit beside another character."""
    if len(token) < 2 or not all(symbol in BYTE_OF_SYMBOL for symbol in token):
        return False
    text = bytes(BYTE_OF_SYMBOL[symbol] for symbol in token).decode(errors="replace")
    return len(text) > 1 and any(unicodedata.category(character)[0] == "N" for character in text)


def _has_token(tokenizer: Mapping[str, Any], token: str) -> bool:
    """Whether a tokenizer.json has `token` in its vocabulary or among the added tokens."""
    vocabulary = _model(tokenizer).get("vocab")
    return (isinstance(vocabulary, dict) and token in vocabulary) or token in _added_contents(tokenizer)


def _is_old_mistral(model: dict[str, Any]) -> bool:
    return model.get("model_type") in _MISTRAL_MODELS and str(model.get("transformers_version") or "0") < "5"


def _pattern(stored: Any) -> str | None:
    """Spell the pre-tokenizer of a tokenizer.json as one text: its pattern or its steps; None for the pattern of ByteLevel."""
    try:
        steps = stored["pretokenizers"] if stored["type"] == "Sequence" else [stored]
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
            return None
        if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
            return str(steps[0]["pattern"]["Regex"]) if steps[0]["behavior"] == "Isolated" else json.dumps(stored)
        # `trim_offsets` changes the offsets of tokens in texts, not their ids.
        untrimmed = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
        return json.dumps(dict(stored, pretokenizers=untrimmed) if stored["type"] == "Sequence" else untrimmed[0], sort_keys=True)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return _UNKNOWN


def _normalizers(stored: Any) -> tuple[str, ...] | str:
    """List the types of the normalizers in a tokenizer.json."""
    try:
        steps = [] if stored is None else stored["normalizers"] if stored["type"] == "Sequence" else [stored]
        return tuple(str(step["type"]) for step in steps)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return _UNKNOWN
