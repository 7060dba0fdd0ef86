"""What happens in a run, and what is found wrong with it: records with one set of names and units, steps as arrays, findings.

Every room above speaks in these; nothing here knows of logs or files.
"""
