"""The stages of an optimizer step, as functions of tensors and plain records.

    Generation ── judge, advantages ──► Scored ── groups, cut ──► MicroBatch ── loss ──► LossOutput

Nothing here knows TRL, a trainer or a model. Read `records` first.
"""
