"""The only modules that use private names of TRL and transformers, or replace their attributes.

`port` lists what grpo_ext reads from the trainers, and `contract` refuses a TRL version that lacks
it. `trl` accesses the private part of the trainer, and `generate` the private part of generation.
Elsewhere, the only private names are methods that `GRPOExtTrainer` and the vLLM samplers override.
"""
