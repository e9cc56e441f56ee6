"""The stages of an optimizer step, as functions of tensors and plain records.

    Generation ── judge, advantages ──► Scored ── groups, cut ──► MicroBatch ── loss ──► LossOutput

No module here imports TRL, a trainer or a model. Read `records` first.
"""
