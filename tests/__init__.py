"""Tests of grpo_ext: one folder for each folder of the package."""
