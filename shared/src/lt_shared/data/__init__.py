"""Tokenized datasets: the `.bin`/`.idx` files, the documents' source lines and the order of a run's samples."""
