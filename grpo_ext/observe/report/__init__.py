"""The report on one or several runs: a single HTML file that needs no network access."""
