"""Commands of lt-train beside training: a command parses its options, calls one function, and prints the result."""
