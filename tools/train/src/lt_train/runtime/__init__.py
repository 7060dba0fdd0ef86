"""The process that a rank is: its device, its place among the ranks, signals, the watchdog, what is said when it fails."""
