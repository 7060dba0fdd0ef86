"""Load a `tokenizer.json`: compiled where its model is one that an encoder covers, else in the library that defines it."""

from lt_preprocess.tokenizers import layers, pattern_codes, self_check, vocabulary_cache
from lt_preprocess.tokenizers.base import Tokenizer
from lt_preprocess.tokenizers.byte_level import ByteLevel, obstacle
from lt_preprocess.tokenizers.files import class_pipelines, tokenizer_json
from lt_preprocess.tokenizers.sentencepiece.byte_fallback_tokenizer import ByteFallbackBpe
from lt_preprocess.tokenizers.vocabulary import Unrecognised, Vocabulary
from lt_shared import memory
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles


def load(files: TokenizerFiles, parse: bool) -> Tokenizer:
    """Raises BadData for a file that is malformed. With `parse`, special tokens in text become tokens."""
    from lt_preprocess.tokenizers import reference_libraries

    if files.kind == "tokenizer.json":
        class_pipelines.check(files)
    try:
        with memory.garbage_collection_paused():
            vocabulary = vocabulary_cache.read(files, tokenizer_json.read)
        reason = obstacle(vocabulary) or layers.obstacle(vocabulary, parse)
    except Unrecognised as unrecognised:
        reason = str(unrecognised)
    if reason:
        return reference_libraries.HuggingFace(files, parse, reason)
    loaded = layers.around(_compiled(vocabulary), vocabulary, parse)
    added = [token.content for token in vocabulary.added_tokens if not token.is_special]
    return self_check.Checked(loaded, lambda: reference_libraries.HuggingFace(files, parse), files, f"parse={parse}", added)


def _compiled(vocabulary: Vocabulary) -> Tokenizer:
    return ByteFallbackBpe(vocabulary) if vocabulary.pattern == pattern_codes.BYTE_FALLBACK else ByteLevel(vocabulary)
