"""Measures, by the names that claims use: from the logs of one seed's runs to a figure."""

from grpo_ext.reproduce.measures import comparisons, completions, curves, formulas
from grpo_ext.reproduce.measures.base import MEASURES, Figure

__all__ = ["MEASURES", "Figure", "comparisons", "completions", "curves", "formulas"]
