"""`python -m lt_preprocess` is the same program as `lt-preprocess`."""

from lt_preprocess.cli import main

main()
