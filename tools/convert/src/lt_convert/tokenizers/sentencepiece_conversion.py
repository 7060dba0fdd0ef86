"""Convert a SentencePiece model to an equivalent `tokenizer.json`.

transformers does this itself if sentencepiece and protobuf are installed; this module's file loads without either.
"""

from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.sentencepiece_proto import BPE, CONTROL, SPACE, UNIGRAM, UNKNOWN, USER_DEFINED, SentencePieceModel


def convert(path: Path, prepend_scheme: str | None = None) -> Any:
    """The `tokenizers.Tokenizer` that encodes like the model, or like transformers' Llama class with a `prepend_scheme`.

    That class puts a space before the `first` part of a text, before `always` each part between added tokens, or `never`.
    Raises BadData for a damaged file or another type of model.
    """
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

    model = sentencepiece_proto.read(path)
    if model.model_type not in (UNIGRAM, BPE):
        raise BadData(f"{path}: a SentencePiece model of type {model.model_type}, only unigram (1) and BPE (2) are supported")
    tokenizer = Tokenizer(_unigram(model) if model.model_type == UNIGRAM else _bpe(model))
    if prepend_scheme is None:
        tokenizer.normalizer = _normalizer(model)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme, split=False)
    tokenizer.decoder = _decoder(model)
    for piece in model.pieces:
        if piece.type in (UNKNOWN, CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(piece.text, normalized=False, special=piece.type != USER_DEFINED)])
    if 0 <= model.bos_id < len(model.pieces):
        bos = model.pieces[model.bos_id].text
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, model.bos_id)]
        )
    return tokenizer


def _unigram(model: SentencePieceModel) -> Any:
    from tokenizers import models

    return models.Unigram([(piece.text, piece.score) for piece in model.pieces], _unknown_id(model), model.byte_fallback)


def _bpe(model: SentencePieceModel) -> Any:
    from tokenizers import models

    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for text, score, _ in model.pieces:
        for cut in range(1, len(text)):
            prefix, suffix = text[:cut], text[cut:]
            if prefix in ids and suffix in ids:
                merges.append((-score, ids[prefix], ids[suffix], prefix, suffix))
    unknown_id = _unknown_id(model)
    return models.BPE(
        vocab=ids,
        merges=[(prefix, suffix) for *_, prefix, suffix in sorted(merges)],
        unk_token=model.pieces[unknown_id].text if unknown_id is not None else None,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _unknown_id(model: SentencePieceModel) -> int | None:
    return next((index for index, piece in enumerate(model.pieces) if piece.type == UNKNOWN), None)


def _normalizer(model: SentencePieceModel) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _decoder(model: SentencePieceModel) -> Any:
    from tokenizers import decoders

    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
