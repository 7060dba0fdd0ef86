"""The states of runs in, findings out: `rules` are pure functions of a state and its thresholds, `alert` runs a pass and
delivers.
"""
