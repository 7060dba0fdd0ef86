"""Tensors as strided views of bytes in files: nothing is read before a block of output is written.

Everything above passes `Tensor` on; `blocks` reads them in bounded pieces, `output_files` says what a file will hold.
"""
