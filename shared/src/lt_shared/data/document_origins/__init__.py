"""Where the documents of a dataset come from: source file, line and byte, in its sidecar and through merge, shuffle and split.

lt-preprocess writes the table while it tokenizes, whoever reads a dataset finds the line that a document was made of.
"""
