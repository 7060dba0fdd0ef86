"""Load a tokenizer of any kind from its files.

Byte-level BPE runs in the compiled encoder when its split pattern is known, and SentencePiece's BPE in another, whichever files
they come from; everything else runs in the library that defines it, at a few MB a second and thread, and a line on standard error
says so.

By default a special token that is written out in a document stays text. `load(files, special_tokens=...)` takes

    text    `<|endoftext|>` in a document is encoded as those 13 characters
    parse   it becomes the token, as Hugging Face's tokenizers and most of Megatron's do
    reject  as text, but `Encoder.forbidden(texts)` names the first special token of every text that has one. The caller calls it
            for every column before `encode`, reports each text it names as a bad line (`str(forbidden)` is the reason) and
            leaves the whole document out; `Texts.without(indices)` takes texts out. In the other modes it returns [] at no cost.
"""

import os
from pathlib import Path

from lt_preprocess.tokenizers import end_of_document, self_check
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_preprocess.tokenizers.files import directories, json_files
from lt_preprocess.tokenizers.vocabulary import Unrecognised, Vocabulary
from lt_shared import memory
from lt_shared.contracts.manifest import Tokenizer as Identity
from lt_shared.contracts.manifest import absolute
from lt_shared.tokenizers import sentencepiece_proto
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles


def identity(files: TokenizerFiles, path: str | Path) -> Identity:
    """Identify the tokenizer in manifests; the user named it by `path`, a path or a name."""
    return Identity(files.name, files.sha256(), absolute(path if os.path.exists(path) else files.files[0]))


def load(files: TokenizerFiles, special_tokens: SpecialTokens = "text") -> Tokenizer:
    """Raises BadData for files that are malformed or not supported."""
    json_files.keep_files()
    try:
        with memory.garbage_collection_paused():
            loaded = _load(files, special_tokens)
    except BaseException:
        json_files.release_files()
        raise
    if not (isinstance(loaded, self_check.Checked) and loaded.needs_library()):
        json_files.release_files()
    return loaded


def _load(files: TokenizerFiles, special_tokens: SpecialTokens) -> Tokenizer:
    parse = special_tokens == "parse"
    is_one_file = files.kind in ("gpt2", "sentencepiece") and directories.additions(files) is None
    if files.kind == "sentencepiece" and is_one_file:
        loaded = _sentencepiece(files, parse)
    elif files.kind == "tokenizer.json" or (files.kind in ("gpt2", "sentencepiece") and not is_one_file):
        loaded = _tokenizer_json(files, parse)
    else:
        from lt_preprocess.tokenizers import byte_level

        loaded = byte_level.load(files, parse)
    if special_tokens == "reject" and loaded.special_tokens:
        from lt_preprocess.tokenizers.special_tokens import Rejecting

        return Rejecting(loaded)
    return loaded


def _tokenizer_json(files: TokenizerFiles, parse: bool) -> Tokenizer:
    """Load a `tokenizer.json`: compiled if an encoder covers its model, else in the library that defines it."""
    from lt_preprocess.tokenizers import layers, pattern_codes, reference_libraries, vocabulary_cache
    from lt_preprocess.tokenizers.byte_level import ByteLevel, obstacle
    from lt_preprocess.tokenizers.files import class_pipelines, tokenizer_json
    from lt_preprocess.tokenizers.sentencepiece.byte_fallback_tokenizer import ByteFallbackBpe

    def read(files: TokenizerFiles) -> Vocabulary:
        # Tables in the cache are of files that have passed.
        if files.kind == "tokenizer.json":
            class_pipelines.check(files)
        return tokenizer_json.read(files)

    try:
        vocabulary = vocabulary_cache.read(files, read)
        reason = obstacle(vocabulary) or layers.obstacle(vocabulary, parse)
    except Unrecognised as unrecognised:
        reason = str(unrecognised)
    if reason:
        return reference_libraries.HuggingFace(files, parse, reason)
    compiled = ByteFallbackBpe(vocabulary) if vocabulary.pattern == pattern_codes.BYTE_FALLBACK else ByteLevel(vocabulary)
    added = [token for token in vocabulary.added_tokens if parse or not token.is_special]
    return self_check.Checked(
        layers.around(compiled, vocabulary, parse),
        lambda: _reference(files, parse, compiled, vocabulary),
        files,
        f"parse={parse}",
        added,
    )


def _reference(files: TokenizerFiles, parse: bool, compiled: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer that checks a compiled one: the tokenizers package's, or in its version 1 the one in Python.

    Version 1 cuts characters that are new in Unicode 17 in another way than 0.20 to 0.23, and reads only some patterns.
    """
    from lt_preprocess.tokenizers import layers, pattern_codes, reference_libraries, tokenizers_package
    from lt_preprocess.tokenizers.byte_level import Slow

    if vocabulary.pattern == pattern_codes.BYTE_FALLBACK or tokenizers_package.has_pattern_engine():
        return reference_libraries.HuggingFace(files, parse, compiled=compiled)
    return layers.around(Slow(vocabulary), vocabulary, parse)


def _sentencepiece(files: TokenizerFiles, parse: bool) -> Tokenizer:
    from lt_preprocess.tokenizers import reference_libraries
    from lt_preprocess.tokenizers.sentencepiece import piece_tokenizer
    from lt_preprocess.tokenizers.vocabulary import Unrecognised

    loaded: Tokenizer
    try:
        compiled = piece_tokenizer.recognise(files.files[0])
        loaded = self_check.Checked(compiled, lambda: reference_libraries.SentencePiece(files), files)
    except Unrecognised as reason:
        loaded = reference_libraries.SentencePiece(files, str(reason))
    _end_with_named(loaded, files)
    if parse and loaded.special_tokens:
        from lt_preprocess.tokenizers.special_tokens import Splitting

        return Splitting(loaded, loaded.special_tokens)
    return loaded


def _end_with_named(tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    """End documents with the `eos_token` of the files beside a SentencePiece model, whatever kind of piece that is."""
    eos_token = json_files.eos_token(files.companions)
    if eos_token is None:
        return
    name = end_of_document.choose(eos_token, tokenizer.special_tokens)
    if name is not None and name in tokenizer.special_tokens:
        tokenizer.eod = tokenizer.special_tokens[name]
        return
    pieces = sentencepiece_proto.read(files.files[0]).pieces
    tokenizer.eod = next((number for number, piece in enumerate(pieces) if piece.text == name), tokenizer.eod)
