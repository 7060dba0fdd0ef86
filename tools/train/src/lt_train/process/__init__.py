"""The process of a rank: device, rank and world size, signals, the watchdog, failure reports."""
