"""Labels that containers, launchers and viewers put around log lines. They come off before any format looks at a line.

`removal` is the way in. `prefixes` has the labels in front of a line, `columns` those that only their repetition gives away,
`margins` those that only their shape gives away, and `envelopes` the JSON objects that hold a line.
"""
