"""Log and monitor runs, and show them in plots and a report."""
