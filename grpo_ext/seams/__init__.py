"""The only room that uses private names of TRL and transformers, or replaces their attributes.

`port` names what this package reads of the trainers, and `contract` refuses a TRL without it. `trl`
has the private part of the trainer, `generate` that of generation. Elsewhere only the methods that
`GRPOExtTrainer` and the vLLM samplers override have private names.
"""
