"""What a rank told of its profile is a part of the trace."""

import pytest

from nbtorchjob.state.trace import marked

TRACE = {"baseTimeNanoseconds": 1000, "traceEvents": [{"ph": "X", "name": "aten::mm", "tid": 7}]}


def test_ranges_are_the_main_threads_and_collectives_have_rows_of_their_own():
    gloos = [["gloo:all_reduce", 3000, 9000], ["gloo:broadcast", 2000, 4000], ["gloo:barrier", 9000, 9500]]
    found = marked(TRACE, {"pid": 7, "ranges": [["forward", 2000, 5000]], "collectives": gloos})

    events = [event for event in found["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [(each["name"], each["pid"], each["tid"], each["ts"], each["dur"]) for each in events] == [
        ("forward", 7, 7, 1.0, 3.0),
        ("gloo:broadcast", 7, 1, 1.0, 2.0),
        ("gloo:all_reduce", 7, 2, 2.0, 6.0),
        ("gloo:barrier", 7, 1, 8.0, 0.5),
    ]
    names = {event["tid"]: event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M"}
    assert names == {1: "gloo 1", 2: "gloo 2"}
    assert TRACE["traceEvents"] == [found["traceEvents"][0]]


@pytest.mark.parametrize("told", [{}, {"pid": 7, "ranges": [["forward", 1]], "collectives": []}])
def test_what_no_rank_tells_is_refused(told):
    with pytest.raises((LookupError, ValueError)):
        marked(TRACE, told)
