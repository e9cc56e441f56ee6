"""Measures: functions that map the logs of a claim's runs to a figure, by name."""

from grpo_ext.reproduce.measures import comparisons, completions, curves, formulas
from grpo_ext.reproduce.measures.base import MEASURES, Figure

__all__ = ["MEASURES", "Figure", "comparisons", "completions", "curves", "formulas"]
