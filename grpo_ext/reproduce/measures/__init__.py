"""Measures: functions from the logs of a claim's runs to a figure, by the names that claims use."""

from grpo_ext.reproduce.measures import comparisons, completions, curves, formulas
from grpo_ext.reproduce.measures.base import MEASURES, Figure

__all__ = ["MEASURES", "Figure", "comparisons", "completions", "curves", "formulas"]
