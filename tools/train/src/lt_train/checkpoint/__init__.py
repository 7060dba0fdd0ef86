"""The state of a run on disk: choose the checkpoint that a run resumes from, read it, and write the next ones."""
