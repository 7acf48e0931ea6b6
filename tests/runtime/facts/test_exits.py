"""A node's exit code, by how its ranks or its peers ended."""

import signal

import pytest

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.exits import TOLD, TOLD_LOST_PEER, TOLD_RECOVERABLE


@pytest.mark.parametrize(
    ("codes", "retried", "code"),
    [
        ([TOLD], True, exits.USER_ERROR),
        ([3], True, exits.USER_ERROR),
        ([0], True, exits.USER_ERROR),
        ([TOLD_RECOVERABLE], True, exits.RECOVERABLE_ERROR),
        ([TOLD_RECOVERABLE], False, exits.USER_ERROR),
        ([-signal.SIGSEGV], True, exits.RECOVERABLE_ERROR),
        ([-signal.SIGSEGV], False, exits.USER_ERROR),
        ([TOLD_LOST_PEER], True, exits.RECOVERABLE_ERROR),
        ([TOLD_LOST_PEER], False, exits.USER_ERROR),
        ([TOLD_LOST_PEER, -signal.SIGKILL], True, exits.RECOVERABLE_ERROR),
        ([TOLD_LOST_PEER, TOLD], True, exits.USER_ERROR),
        ([TOLD_RECOVERABLE, TOLD], True, exits.USER_ERROR),
        ([exits.UNSEEN], True, exits.RECOVERABLE_ERROR),
        ([-signal.SIGABRT, TOLD], True, exits.USER_ERROR),
    ],
)
def test_a_nodes_code_comes_from_how_its_ranks_ended(codes, retried, code):
    assert exits.of_ranks(codes, retried=retried) == code
    assert exits.of_ranks(reversed(codes), retried=retried) == code


@pytest.mark.parametrize("code", [exits.USER_ERROR, exits.CONFIG_ERROR])
def test_a_failure_for_good_is_one_on_every_node(code):
    assert exits.of_peer(code) == exits.USER_ERROR


@pytest.mark.parametrize("code", [exits.INFRASTRUCTURE_ERROR, exits.CANCELLED])
def test_a_node_whose_peer_is_lost_may_be_tried_again(code):
    assert exits.of_peer(code) == exits.INFRASTRUCTURE_ERROR


@pytest.mark.parametrize("code", [exits.OK, exits.RECOVERABLE_ERROR])
def test_success_and_a_failure_that_may_be_tried_again_are_the_same_on_every_node(code):
    assert exits.of_peer(code) == code
