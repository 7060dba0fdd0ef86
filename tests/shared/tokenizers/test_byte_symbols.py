"""The table is that of Hugging Face's tokenizers."""

from tokenizers import pre_tokenizers

from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE


def test_the_symbols_of_tokenizers() -> None:
    assert {*SYMBOL_OF_BYTE} == {*pre_tokenizers.ByteLevel.alphabet()}
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("".join(map(chr, range(0x80))), "".join(map(chr, range(0x80, 0x800))), "\u4e2d\U0010ffff"):
        [(symbols, _)] = spelled.pre_tokenize_str(text)
        assert symbols == "".join(SYMBOL_OF_BYTE[byte] for byte in text.encode())


def test_both_directions_agree() -> None:
    assert len(SYMBOL_OF_BYTE) == len(BYTE_OF_SYMBOL) == 256
    assert [BYTE_OF_SYMBOL[symbol] for symbol in SYMBOL_OF_BYTE] == list(range(256))
