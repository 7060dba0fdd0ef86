"""Translate configurations of other trainers into options of lt-train. Keys without a counterpart are listed with a reason."""
