"""Tensors as strided views of bytes in files: nothing is read before a block of output is written.

The other rooms pass `Tensor`s on; `blocks` reads them in bounded memory, `output_files` describes the files' contents.
"""
