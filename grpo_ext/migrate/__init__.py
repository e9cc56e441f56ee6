"""Translate the settings of TRL, open-r1, ms-swift and verl into recipes."""
