"""Byte-level BPE: text is cut by `pretokenizer`, words are looked up in `word_cache`, and the rest merged by `encoder`."""
