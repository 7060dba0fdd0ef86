"""Convert a SentencePiece model to an equivalent `tokenizer.json`.

transformers does this itself if sentencepiece and protobuf are installed; this module's file loads without either.
"""

import base64
from pathlib import Path

from lt_convert.tokenizers import tokenizer_json
from lt_convert.tokenizers.tokenizer_json import Part, TokenizerJson
from lt_shared.console import BadData
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.sentencepiece_proto import BPE, CONTROL, SPACE, UNIGRAM, UNKNOWN, USER_DEFINED, SentencePieceModel


def convert(path: Path, prepend_scheme: str | None = None) -> TokenizerJson:
    """The tokenizer that encodes like the model, or like transformers' Llama class with a `prepend_scheme`.

    That class puts a space before the `first` part of a text, before `always` each part between added tokens, or `never`.
    Raises BadData for a damaged file or another type of model.
    """
    model = sentencepiece_proto.read(path)
    if model.model_type not in (UNIGRAM, BPE):
        raise BadData(f"{path}: a SentencePiece model of type {model.model_type}, only unigram (1) and BPE (2) are supported")
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prepend_scheme, "split": False}
    tokenizer = tokenizer_json.tokenizer(
        _unigram(model) if model.model_type == UNIGRAM else _bpe(model),
        normalizer=_normalizer(model) if prepend_scheme is None else None,
        pre_tokenizer=None if prepend_scheme is None else metaspace,
        decoder=_decoder(model),
    )
    tokenizer.add_tokens(
        tokenizer_json.added_token(piece.text, normalized=False, special=piece.type != USER_DEFINED)
        for piece in model.pieces
        if piece.type in (UNKNOWN, CONTROL, USER_DEFINED)
    )
    if 0 <= model.bos_id < len(model.pieces):
        tokenizer.content["post_processor"] = tokenizer_json.template((model.pieces[model.bos_id].text, model.bos_id))
    return tokenizer


def _unigram(model: SentencePieceModel) -> Part:
    return {
        "type": "Unigram",
        "unk_id": _unknown_id(model),
        "vocab": [[piece.text, piece.score] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: SentencePieceModel) -> Part:
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for text, score, _ in model.pieces:
        for cut in range(1, len(text)):
            prefix, suffix = text[:cut], text[cut:]
            if prefix in ids and suffix in ids:
                merges.append((-score, ids[prefix], ids[suffix], prefix, suffix))
    unknown_id = _unknown_id(model)
    return tokenizer_json.bpe(
        ids,
        [(prefix, suffix) for *_, prefix, suffix in sorted(merges)],
        unknown=model.pieces[unknown_id].text if unknown_id is not None else None,
        fuses_unknown=True,
        byte_fallback=model.byte_fallback,
    )


def _unknown_id(model: SentencePieceModel) -> int | None:
    return next((index for index, piece in enumerate(model.pieces) if piece.type == UNKNOWN), None)


def _normalizer(model: SentencePieceModel) -> Part:
    steps: list[Part] = []
    if model.precompiled_charsmap:
        charsmap = base64.b64encode(model.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append(tokenizer_json.replace(" {2,}", " ", is_regex=True))
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(tokenizer_json.replace(" ", SPACE))
    return tokenizer_json.sequence("normalizers", steps)


def _decoder(model: SentencePieceModel) -> Part:
    steps: list[Part] = [tokenizer_json.replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return tokenizer_json.sequence("decoders", steps)
