"""Hooks around the steps of a run, one file per concern. The trainer calls each hook before and after every step."""
