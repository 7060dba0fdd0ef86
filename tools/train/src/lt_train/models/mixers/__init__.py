"""Mixers of a block: hidden states [s, b, h] in, mixed with earlier tokens out. `pattern` chooses the mixer of each block."""
