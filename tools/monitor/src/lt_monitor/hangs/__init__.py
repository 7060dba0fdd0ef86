"""Find the rank that holds a run up, from dumps of torch's flight recorder, py-spy, or lt-train's watchdog.

The input is one file per rank, the output a report, as lines and as an object. `lt-monitor stuck` calls it. Dumps are untrusted
files, so they are read within bounds and never executed.
"""
