"""From the step of a run back to the text that it was trained on: samples, documents, source lines, and how to leave them out.

A run's directory and the steps come in, what to show and a skip list for lt-train go out; the command line calls it.
"""
