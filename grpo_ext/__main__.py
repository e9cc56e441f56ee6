"""Let `python -m grpo_ext` run the command `grpo-ext`."""

import sys

from grpo_ext.cli.main import main

sys.exit(main())
