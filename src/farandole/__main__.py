"""`python -m farandole` is the `farandole` command."""

import sys

from farandole.control.cli.main import main

sys.exit(main())
