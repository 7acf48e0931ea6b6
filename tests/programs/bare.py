"""Run a payload without cloudpickle or nbtorchjob installed, with packages from SITE: PAYLOAD SITE."""

import runpy
import sys
from importlib.util import find_spec

sys.path[0:1] = []
sys.path.append(sys.argv[2])
assert not find_spec("cloudpickle")
assert not find_spec("nbtorchjob")
del sys.argv[0]
sys.path.insert(0, sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
