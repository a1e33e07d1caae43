"""The report: tables, curves and trees of runs on a page."""
