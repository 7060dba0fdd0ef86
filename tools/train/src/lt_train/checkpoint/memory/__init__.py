"""Copies of the newest training state in the nodes' memory, so that a lost node costs seconds of work."""
