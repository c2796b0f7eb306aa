"""`python -m farandole` is the `farandole` command."""

import sys

from farandole.cli.main import main

sys.exit(main())
