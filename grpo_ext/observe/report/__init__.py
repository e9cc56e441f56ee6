"""The report of one or several runs: one HTML file that needs no network."""
