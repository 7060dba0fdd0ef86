"""Mixers of a block: hidden states [s, b, h] in, mixed with those of the tokens before out; `pattern` chooses them."""
