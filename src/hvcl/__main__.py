"""python -m hvcl: the command line."""

import sys

from hvcl.commands.main import main

sys.exit(main())
