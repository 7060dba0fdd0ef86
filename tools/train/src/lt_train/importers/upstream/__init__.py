"""Options of other trainers with their defaults, by version, and the options that do not change what a run learns."""
