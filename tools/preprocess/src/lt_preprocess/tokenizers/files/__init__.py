"""The files that tokenizers come in: a vocabulary, merges and a split pattern out of each kind."""
