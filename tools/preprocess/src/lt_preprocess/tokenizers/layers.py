"""Layers around a tokenizer's encoder for features that its tables do not have. A tokenizer gets only the layers that it needs.

Added tokens are taken out of the text, the text between them is normalized, added tokens are taken out of the normalized text,
and the remaining text is encoded.
"""

from collections.abc import Sequence

from lt_preprocess.tokenizers import pattern_codes
from lt_preprocess.tokenizers.base import Tokenizer
from lt_preprocess.tokenizers.vocabulary import NO_PREFIX, PREFIX, AddedToken, Vocabulary


def obstacle(vocabulary: Vocabulary, parse: bool) -> str | None:
    """Why the layers cannot find the added tokens as the library does; None when they can."""
    # What its normalizer does to texts is part of this encoder.
    is_changed = vocabulary.pattern == pattern_codes.BYTE_FALLBACK and vocabulary.space_prefix in (NO_PREFIX, PREFIX)
    for token in vocabulary.added_tokens:
        if token.is_special and not parse:
            continue
        if token.is_single_word:
            return f"its added token {token.content} is looked for between words only"
        if token.is_normalized and is_changed:
            return f"its added token {token.content} is looked for in the normalized text"
    return None


def around(tokenizer: Tokenizer, vocabulary: Vocabulary, parse: bool) -> Tokenizer:
    """The tokenizer, in the layers that its vocabulary needs. With `parse`, special tokens in text become tokens."""
    normalized = [_in_normal_form(token, vocabulary) for token in vocabulary.added_tokens if token.is_normalized]
    tokenizer = _with_added_tokens(tokenizer, normalized, parse)
    if vocabulary.is_nfc:
        from lt_preprocess.tokenizers.normalization import Normalizing

        tokenizer = Normalizing(tokenizer)
    return _with_added_tokens(tokenizer, [token for token in vocabulary.added_tokens if not token.is_normalized], parse)


def _in_normal_form(token: AddedToken, vocabulary: Vocabulary) -> AddedToken:
    """The token as it reads in a normalized text: the library normalizes the tokens that it looks for there."""
    if not vocabulary.is_nfc:
        return token
    from lt_preprocess.tokenizers import tokenizers_package

    return token._replace(content=tokenizers_package.normalizer_of_form_c()(token.content))


def _with_added_tokens(tokenizer: Tokenizer, added: Sequence[AddedToken], parse: bool) -> Tokenizer:
    """The library finds special tokens also when it does not take them for tokens, and what overlaps them is hidden then."""
    if all(token.is_special for token in added) and not parse:
        return tokenizer
    from lt_preprocess.tokenizers.special_tokens import SKIPPED, Splitting

    ids = {token.content: token.id if parse or not token.is_special else SKIPPED for token in added}
    strips = {token.content: token.strips_left + 2 * token.strips_right for token in added}
    return Splitting(tokenizer, ids, strips)
