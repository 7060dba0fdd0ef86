"""Shell scripts read without running them: text comes in, and the commands that a run would start go out; importers call it."""
