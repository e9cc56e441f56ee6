"""Measures: functions, registered by name, that compute a figure from the logs of runs."""

from grpo_ext.reproduce.measures import comparisons, completions, curves, formulas
from grpo_ext.reproduce.measures.base import MEASURES, Figure

__all__ = ["MEASURES", "Figure", "comparisons", "completions", "curves", "formulas"]
