"""Mixers of a block: hidden states [s, b, h] in, mixed with earlier tokens out. `pattern` chooses every block's mixer."""
