"""Texts in, token ids out: `loading` recognises a tokenizer's files and gives its compiled encoder, or the library's.

`self_check` compares the compiled encoder with the library on this machine before it is used.
"""
