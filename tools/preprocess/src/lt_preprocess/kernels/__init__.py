"""What compiled code is made of: functions compiled by numba and kept as object code, memory by address, vector instructions."""
