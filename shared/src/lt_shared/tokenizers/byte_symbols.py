"""GPT-2's `bytes_to_unicode`: the printable character that stands for each byte in byte-level BPE vocabularies.

A byte that Latin-1 prints stands for itself; the others, in order, for the characters from U+0100 on (a space is U+0120).
"""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)

BYTE_OF_SYMBOL: dict[str, int] = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(_OTHERS)
}

SYMBOL_OF_BYTE: tuple[str, ...] = tuple(sorted(BYTE_OF_SYMBOL, key=BYTE_OF_SYMBOL.__getitem__))
"""Indexed by the byte."""
