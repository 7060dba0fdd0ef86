"""Configurations in Python, read by an interpreter of their syntax tree. Nothing of a configuration's code is executed."""
