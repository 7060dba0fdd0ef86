"""Runs as people look at them: tables, plots, the report in one HTML file, differences, goodput, a terminal that is kept up
to date.
"""
