"""Support for vLLM beyond TRL's: a CPU backend that can be trained, settings, a server.

On a CPU gloo transports the weights, and layers keep the weights that are loaded; CUDA is
unaffected. The trainer's side is in `grpo_ext.samplers.vllm_generation` and
`grpo_ext.samplers.vllm_client`.
"""


class EngineFailure(RuntimeError):
    """The vLLM engine fails or gives wrong results; it ends a run with a checkpoint."""
