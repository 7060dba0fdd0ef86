"""Options of other trainers with their defaults, by version, and the options that do not change the result of a run."""
