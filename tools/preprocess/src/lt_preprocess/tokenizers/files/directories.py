"""A tokenizer is its directory: merge the main file and the files beside it into one `tokenizer.json`.

The files have the meaning that AutoTokenizer of transformers 5 gives them. Added tokens that the main file does not list follow
its highest id; a token with another stated id is refused. `add_prefix_space` puts a space before texts. A SentencePiece model
becomes merges of characters, with U+2581 before texts (`legacy` decides whether also after added tokens), as in LlamaTokenizer.
Any other setting is refused, and the refusal says how transformers makes a tokenizer.json of the directory.
"""

import copy
import dataclasses
from typing import Any

from lt_preprocess.tokenizers.files import gpt2_files, json_files
from lt_shared.console import BadData
from lt_shared.tokenizers import configuration, sentencepiece_proto
from lt_shared.tokenizers.configuration import Configuration
from lt_shared.tokenizers.sentencepiece_proto import BPE, BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED, SentencePieceModel
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

SHIFTED_CLASSES = frozenset(
    [
        *("XLMRobertaTokenizer", "CamembertTokenizer", "BarthezTokenizer", "MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"),
        *(
            "M2M100Tokenizer",
            "XGLMTokenizer",
            "PLBartTokenizer",
            "Speech2TextTokenizer",
            "SeamlessM4TTokenizer",
            "MarianTokenizer",
        ),
        *("PegasusTokenizer", "LayoutXLMTokenizer", "MLukeTokenizer", "ErnieMTokenizer", "FNetTokenizer", "RemBertTokenizer"),
        *("AlbertTokenizer", "XLNetTokenizer", "CpmTokenizer", "DebertaV2Tokenizer", "BigBirdTokenizer", "SpeechT5Tokenizer"),
        *("T5Tokenizer", "UdopTokenizer", "GPTSw3Tokenizer", "SiglipTokenizer", "ReformerTokenizer", "BertGenerationTokenizer"),
        *("CodeLlamaTokenizer", "CohereTokenizer", "BloomTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer"),
    ]
)
"""Classes of transformers that change ids or texts of their SentencePiece model, or add tokens that no file lists.

T5 adds `<extra_id_0>`, CodeLlama U+2581 and `<PRE>`; the last ones spell bytes, as no SentencePiece model does.
"""

_SHIFTED_MODEL_TYPES = frozenset(
    [
        *("xlm-roberta", "xlm-roberta-xl", "camembert", "barthez", "mbart", "nllb-moe", "m2m_100", "xglm", "plbart", "marian"),
        *("pegasus", "layoutxlm", "albert", "xlnet", "deberta-v2", "big_bird", "fnet", "rembert", "ernie_m", "seamless_m4t"),
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "gpt-sw3", "siglip", "reformer", "bert-generation"),
        *("cohere", "cohere2", "bloom", "gpt2", "qwen2", "gpt_neox"),
    ]
)
_NO_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", None)
# Classes that use no SentencePiece model at all.
_BYTE_CLASSES = frozenset(["ByT5Tokenizer", "MyT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"])


def additions(files: TokenizerFiles) -> dict[str, Any] | None:
    """Return the directory as one tokenizer.json, or None if the main file is complete.

    Raises BadData for settings that are not known here.
    """
    config = files.configuration()
    if files.kind == "gpt2":
        return _gpt2(files, config)
    if files.kind == "sentencepiece":
        return _sentencepiece(files, config)
    if files.kind == "tokenizer.json":
        return _extended(files, config)
    return None


def _remedy(files: TokenizerFiles) -> str:
    directory = str(files.directory)
    return (
        'python -c "import transformers; '
        f"transformers.AutoTokenizer.from_pretrained('{directory}').save_pretrained('NEW')\" and --tokenizer NEW"
    )


def _with_added(
    files: TokenizerFiles, ids: dict[str, int], listed: list[dict[str, Any]], config: Configuration
) -> list[dict[str, Any]]:
    """All added tokens with their ids: those `listed` in the main file, then those that only the configuration has."""
    added = list(listed)
    contents = {token["content"] for token in added}
    # As the library counts: after the size of the vocabulary, whatever ids it has, or after the highest added token.
    following = max([len(ids), *(token["id"] + 1 for token in added)])
    for token in config.added_tokens:
        content = token["content"]
        if content in contents or not content:
            continue
        number = ids.get(content, following)
        if token["id"] not in (None, number):
            raise BadData(
                f"{files.directory}: added token {content} has id {token['id']}, which transformers would make {number}",
                _remedy(files),
            )
        following = max(following, number + 1)
        contents.add(content)
        added.append(token | {"id": number})
    return added


def _gpt2(files: TokenizerFiles, config: Configuration) -> dict[str, Any] | None:
    vocabulary_path, merges_path = files.files
    if not config.added_tokens and not config.add_prefix_space and config.class_name is None:
        return None
    gpt2_files.check_class(files)
    ids = json_files.check_ids(vocabulary_path, json_files.read_object(vocabulary_path))
    end_of_text = gpt2_files.END_OF_TEXT
    is_plain = all(token["content"] == end_of_text and token["special"] for token in config.added_tokens)
    if is_plain and not config.add_prefix_space and config.eos_token in (None, end_of_text) and end_of_text in ids:
        return None
    listed = config.added_tokens
    if end_of_text in ids and all(token["content"] != end_of_text for token in listed):
        # It is special in such a vocabulary also without a configuration.
        listed = (*listed, configuration.special_token(end_of_text))
    merges = gpt2_files.merges_of(merges_path, ids)
    return _content(
        vocab=ids,
        merges=merges,
        added=_with_added(files, ids, [], dataclasses.replace(config, added_tokens=listed)),
        pre_tokenizer=_byte_level(bool(config.add_prefix_space)),
        decoder=_byte_level(True),
        byte_fallback=False,
    )


def _byte_level(add_prefix_space: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": True}


def _content(
    vocab: dict[str, int],
    merges: list[list[str]],
    added: list[dict[str, Any]],
    pre_tokenizer: dict[str, Any],
    decoder: dict[str, Any],
    byte_fallback: bool,
) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _sentencepiece(files: TokenizerFiles, config: Configuration) -> dict[str, Any] | None:
    path = files.files[0]
    _check_not_shifted(files, config)
    if not config.added_tokens and config.add_prefix_space is not False:
        return None
    model = sentencepiece_proto.read(path)
    kinds = {piece.text: piece.type for piece in model.pieces}
    # A control symbol that is not special is looked for in texts: `</s>` of Phi-3.
    unlisted = [
        token
        for token in config.added_tokens
        if kinds.get(token["content"]) not in ((CONTROL, UNKNOWN, USER_DEFINED) if token["special"] else (USER_DEFINED,))
    ]
    if not unlisted and (config.add_prefix_space is not False or not model.add_dummy_prefix):
        _with_added(files, {piece.text: number for number, piece in enumerate(model.pieces)}, [], config)
        return None
    if reason := _obstacle(model, config):
        tokens = ", ".join(token["content"] for token in unlisted[:3]) or "add_prefix_space"
        raise BadData(f"{files.directory}: added tokens ({tokens}) beside {path.name}, {reason}", _remedy(files))
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    stated = {token["content"]: token for token in config.added_tokens}
    listed = [
        configuration.special_token(piece.text)
        | {"special": piece.type != USER_DEFINED}
        | stated.get(piece.text, {})
        | {"id": number}
        for number, piece in enumerate(model.pieces)
        if piece.type in (CONTROL, UNKNOWN, USER_DEFINED)
    ]
    has_prefix = config.add_prefix_space is not False
    scheme = "never" if not has_prefix else "always" if config.legacy else "first"
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _content(
        vocab=ids,
        merges=_merges(model),
        added=_with_added(files, ids, listed, config),
        pre_tokenizer=_metaspace(scheme),
        decoder={"type": "Sequence", "decoders": decoders},
        byte_fallback=True,
    )


def _check_not_shifted(files: TokenizerFiles, config: Configuration) -> None:
    path = files.directory / "config.json"
    name: str | None = config.class_name
    is_shifted = name in SHIFTED_CLASSES or name in _BYTE_CLASSES
    if name is None and path.is_file():
        name = str(json_files.read_object(path).get("model_type"))
        is_shifted = name in _SHIFTED_MODEL_TYPES
    if is_shifted:
        raise BadData(
            f"{files.files[0]}: the ids of {name} are not those of its SentencePiece model, which it changes", _remedy(files)
        )
    if config.class_name == "LlamaTokenizer" and sentencepiece_proto.read_model_type(files.files[0]) != BPE:
        raise BadData(
            f"{files.files[0]}: LlamaTokenizer merges its pieces as BPE, which gives other ids than the model's own algorithm",
            _remedy(files),
        )
    if config.class_name == "GemmaTokenizer" and sentencepiece_proto.read(files.files[0]).add_dummy_prefix:
        raise BadData(f"{files.files[0]}: GemmaTokenizer puts no space before texts, and the model does", _remedy(files))


def _obstacle(model: SentencePieceModel, config: Configuration) -> str | None:
    """Explain why LlamaTokenizer would read this model with its added tokens differently; None if it would not."""
    has_prefix = config.add_prefix_space is not False
    is_unnamed = config.class_name in _NO_CLASSES
    reasons = {
        f"whose class is {config.class_name}": config.class_name != "LlamaTokenizer" and not is_unnamed,
        "whose class no tokenizer_config.json names: transformers puts no space before texts then": is_unnamed and has_prefix,
        "which is no BPE with bytes": model.model_type != BPE or not model.byte_fallback,
        "which normalizes characters": bool(model.precompiled_charsmap),
        "which removes white space": model.remove_extra_whitespaces,
        "which puts no space before texts": not model.add_dummy_prefix and config.add_prefix_space is None,
        "which has pieces of an unknown kind": any(
            piece.type not in (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE) for piece in model.pieces
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _merges(model: SentencePieceModel) -> list[list[str]]:
    """List the merges of a model in the order of the merged pieces' scores."""
    merging = {piece.text for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)}
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    scored = [
        (-piece.score, ids[piece.text], cut, ids[piece.text[:cut]], piece.text)
        for piece in model.pieces
        if piece.text in merging
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in merging and piece.text[cut:] in merging
    ]
    return [[text[:cut], text[cut:]] for _, _, cut, _, text in sorted(scored)]


def _extended(files: TokenizerFiles, config: Configuration) -> dict[str, Any] | None:
    path = files.files[0]
    raw = path.read_bytes()
    changes_prefix = config.changed_prefix_spaces(raw) > 0
    scheme = config.changed_metaspace(raw)
    changed = {token["content"]: token for token in config.changed_flags(raw)}
    joins_digits = config.changed_digits(raw)
    is_changed = changes_prefix or scheme is not None or bool(changed) or joins_digits
    if not is_changed and not config.unlisted_in(raw):
        return None
    content = json_files.read_object(path)
    if changes_prefix:
        content = content | {"pre_tokenizer": copy.deepcopy(content["pre_tokenizer"])}
        for step in configuration.byte_level_steps(content["pre_tokenizer"]):
            step["add_prefix_space"] = config.add_prefix_space
    if joins_digits:
        content = content | {"pre_tokenizer": content["pre_tokenizer"]["pretokenizers"][1]}
    if scheme is not None:
        content = content | {"normalizer": None, "pre_tokenizer": _metaspace(scheme)}
    try:
        vocab = content["model"]["vocab"]
        ids = vocab if isinstance(vocab, dict) else {entry[0]: number for number, entry in enumerate(vocab)}
        listed = [changed.get(token["content"], token) for token in content.get("added_tokens") or []]
        added = _with_added(files, json_files.check_ids(path, ids), listed, config)
    except (KeyError, TypeError, AttributeError, IndexError):
        return None
    return content | {"added_tokens": added} if is_changed or len(added) > len(listed) else None


def _metaspace(prepend_scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prepend_scheme, "split": False}
