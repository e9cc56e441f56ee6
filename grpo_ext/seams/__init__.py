"""Where this package touches what is private to TRL and transformers, and where it puts something in their place for a while.

`version` picks the file of the installed TRL. `contract` refuses a TRL whose seams have moved. `trl` is the trainer's private
side, `generate` transformers' `generate`. Nothing else in the package uses a private name of theirs, except the methods that
`GRPOExtTrainer` and the vLLM samplers override.
"""
