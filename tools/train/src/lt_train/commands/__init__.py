"""Commands of lt-train beside training itself: each parses, calls one function, and prints."""
