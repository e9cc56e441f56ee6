"""`python -m grpo_ext` is `grpo-ext`."""

import sys

from grpo_ext.cli.main import main

sys.exit(main())
