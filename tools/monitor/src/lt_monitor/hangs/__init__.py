"""Which rank holds a run up, from dumps of its ranks: torch's flight recorder, py-spy, the stacks of lt-train's watchdog.

What comes in are files that one rank each has written; what goes out is a report, as lines and as an object. `stuck` of the
command line calls it. The dumps are anybody's files, so they are read within bounds and without executing any of them.
"""
