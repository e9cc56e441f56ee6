"""Access to private names of TRL and transformers, and replacements of their attributes.

`port` lists what grpo_ext reads from the trainers, and `contract` refuses a TRL version that lacks
it. `trl` accesses the private part of the trainer, and `generate` the private part of generation.
Elsewhere, the only private names are methods and fields that `GRPOExtTrainer` and the vLLM samplers
inherit, and a few attributes of models and their configs.
"""
