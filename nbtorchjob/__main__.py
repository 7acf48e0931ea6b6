"""``python -m nbtorchjob``: the command, where it isn't on the PATH."""

import sys

from nbtorchjob.frontends.cli import main

sys.exit(main())
