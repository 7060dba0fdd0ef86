"""`python -m lt_monitor`."""

from lt_monitor.cli import main

main()
