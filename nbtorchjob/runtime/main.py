"""The payload's ``__main__.py``. It parses on any Python 3, so that it can say what it needs."""

import sys

if sys.version_info < (3, 8):
    sys.exit("nbtorchjob needs Python 3.8 or later on a node, and this is %s" % sys.version)

from nbtorchjob.runtime.node import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[0]))
