"""Configurations of other trainers as options of lt-train; a key without a counterpart is listed with the reason."""
