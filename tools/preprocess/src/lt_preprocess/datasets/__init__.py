"""Finished datasets in, finished datasets or facts out: merge, shuffle, split, statistics, decoding, verification,
retokenization.
"""
