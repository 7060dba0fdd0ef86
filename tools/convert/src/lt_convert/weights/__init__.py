"""The weights of each model family by their canonical (Hugging Face) names, and the way to each format's names and back.

`families` holds a table a family, made of weight ops that are invertible; `mapping` applies it; `tensor_parallel` splits and
joins.
"""
