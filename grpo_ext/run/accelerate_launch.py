"""Run `accelerate launch` without garbage collection during its imports.

This saves about a third of its start-up time.
"""

import gc

from grpo_ext.common.modules import without_collector

with without_collector():
    from accelerate.commands.launch import main

gc.freeze()

if __name__ == "__main__":
    main()
