"""`python -m lt_convert`."""

from lt_convert.cli import main

main()
