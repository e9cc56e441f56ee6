"""The pretrained model of some of these tests."""

from tests.support.pretrained import smollm2

__all__ = ["smollm2"]
