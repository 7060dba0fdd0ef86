"""The process that a rank is: its device, its rank and world size, signals, the watchdog, what is said when it fails."""
