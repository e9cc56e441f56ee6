"""Logs, health monitor, plots and report of runs."""
