"""The state of a run on disk: which checkpoint a run resumes from, what is in it, how it is written and read."""
