"""Tokenizer files: every format is read into a vocabulary, merges and a split pattern."""
