"""The weights of each model family under canonical (Hugging Face) names, converted to the names of each format and back.

`families` has one module per family, with a table of invertible weight ops for each format; `mapping` applies the tables;
`tensor_parallel` splits tensors into the shards of tensor parallel ranks and joins them.
"""
