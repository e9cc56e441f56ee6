"""The name of the argument through which a model receives its KV cache.

transformers 5.24 renamed the argument from `past_key_values` to `cache`; 5.40 drops the old name.
"""

import inspect

from transformers import GenerationMixin

_PARAMETERS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters

CACHE_INPUT = "cache" if "cache" in _PARAMETERS else "past_key_values"
