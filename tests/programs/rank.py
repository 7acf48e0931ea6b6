"""Run the call that comes on stdin, with the folders of the command line first on the path."""

import pickle
import sys

sys.path[:0] = sys.argv[1:]

from nbtorchjob.runtime.rank import call  # noqa: E402

pickled, buffers = pickle.load(sys.stdin.buffer)
print(call.run(pickle.loads(pickled, buffers=buffers)))
