"""Configurations of other trainers as options of lt-train; what has no counterpart is listed with the reason."""
