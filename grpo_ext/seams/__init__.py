"""Access to private names of TRL and transformers, and replacements of their attributes.

`port` lists the names that grpo_ext uses from the trainers, and `contract` raises an error if the
installed TRL or transformers lacks one of them. `trl` accesses the private part of the trainer, and
`generate` the private part of generation. In the rest of grpo_ext, the only private names are
methods and fields that `GRPOExtTrainer` and the vLLM samplers inherit, and a few attributes of
models and their configs.
"""
