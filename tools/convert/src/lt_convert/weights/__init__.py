"""The model families' weights under canonical (Hugging Face) names, converted to a format's names and back.

`families` has one module per family, with a table of invertible weight ops per format; `mapping` applies the tables;
`tensor_parallel` splits tensors into the shards of tensor parallel ranks and joins them.
"""
