"""The data types of lt-monitor: event records with one set of names and units, steps as arrays, and findings of alerts.

Every other room uses these types; nothing here knows about logs or files.
"""
