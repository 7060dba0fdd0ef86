"""Tokenized datasets: the `.bin`/`.idx` files, the source line of each document and the order of a run's samples."""
