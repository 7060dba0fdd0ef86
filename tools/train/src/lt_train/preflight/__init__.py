"""Checks that find a mistake before the queue does. A check is a function that yields findings."""
