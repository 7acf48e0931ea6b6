"""How long the next try waits."""

import random
from itertools import islice

from nbtorchjob.backends.kubernetes.api.connection import delays


def test_waits_double_up_to_a_cap_and_differ_by_up_to_a_half():
    for wait, most in zip(delays(1, 6), (1, 2, 4, 6, 6, 6), strict=False):
        assert most / 2 <= wait <= most


def test_a_notebook_that_has_seeded_random_finds_its_own_numbers():
    random.seed(3)
    before = random.getstate()
    list(islice(delays(1, 6), 4))

    assert random.getstate() == before
