"""The only place where this package uses private names of TRL and transformers, or replaces their attributes for a while.

`contract` refuses a TRL whose private parts have changed. `trl` has the private part of the trainer, `generate` that of
generation. Elsewhere only the methods that `GRPOExtTrainer` and the vLLM samplers override have private names.
"""
