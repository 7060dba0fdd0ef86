"""Paths in, chunks of documents out, from lines, tables, Parquet, archives or text, compressed, remote or from a pipe.

`inputs` finds and opens them; a chunk's `batch` parses it in the thread that encodes it.
"""
