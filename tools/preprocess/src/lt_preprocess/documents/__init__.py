"""Documents: from the texts of a chunk to documents of token ids, in one recipe.

Filters leave documents out, a template fills one text from several fields, infilling rearranges texts, long documents are cut,
and tokens are put around them.
"""
