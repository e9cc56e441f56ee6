"""Pages of the documentation that messages refer to."""

#: Has a section for each alarm: what to look at, why it happens, and which keys to set.
DOES_NOT_LEARN = "docs/does-not-learn.md"
#: The section of that page for the alarm `learned_nothing`.
NOTHING_WAS_LEARNED = "nothing-was-learned"
