"""Entry point of `python -m grpo_ext`, which runs the command `grpo-ext`."""

import sys

from grpo_ext.cli.main import main

sys.exit(main())
