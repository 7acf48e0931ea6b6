"""Each way to hang is diagnosed with its rank and its line, or as "unsure"."""

from dataclasses import replace
from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import (
    BEGINS,
    BUSY,
    ENDED,
    RUNS,
    STOPPED,
    Collective,
    Group,
    RankSample,
    Thread,
)
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.diagnosis import diagnose
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text.hang import describe

CELL = "/tmp/ipykernel_1/1.py"
LINES = [
    "import torch",
    "dist.all_reduce(t)",
    "next(loader)",
    "time.sleep(100)",
    "handle.wait()",
    "dist.recv(t, 1)",
    "time.sleep(1); flock(file, LOCK_EX)",
]
SITE = "/usr/lib/python3.11/site-packages/"
C10D = SITE + "torch/distributed/distributed_c10d.py"
NOW = 140.0


def cell(number):
    return Frame(CELL, number, "<module>", LINES[number - 1])


def stack(number, *below):
    """Return a thread with the user's innermost frame in that line of the cell."""
    files = [(C10D, name) if "/" not in name else tuple(name.split(" ")) for name in below]
    return (Thread("MainThread", (cell(number), *(Frame(file, 9, name) for file, name in files))),)


def calls(*ops, done=None, since=100.0, **more):
    """Return calls from number 1 on, all but the last done."""
    last = len(ops) - 1 if done is None else done
    return tuple(Collective(n, op, since, n <= last, **more) for n, op in enumerate(ops, 1))


def default(*operations, ranks=(0, 1, 2, 3)):
    return (Group("0", ranks, operations),)


def rank(number, state=RUNS, threads=(), groups=(), note=""):
    return RankSample(number, state, 10, threads, groups, note)


def waiting(number, *ops, line=2, groups=None, **more):
    own_groups = default(*calls(*(ops or ("all_reduce", "all_reduce")), **more)) if groups is None else groups
    return rank(number, RUNS, stack(line, "all_reduce"), own_groups)


def absent(number, line=3, *below, state=RUNS):
    return rank(number, state, stack(line, *below), default(*calls("all_reduce", done=1)))


def said(*samples, world=4, facts=(), time=NOW, over=False):
    """Return the diagnosis of samples of one node."""
    info = JobInfo("job", sources={CELL: ("Cell In[3]", "\n".join(LINES))})
    started = ev.WorkersStarted(1.0, 0, 0, 0, tuple(range(world)), world)
    sampled = ev.Sampled(time, 0, 0, "quiet", samples)
    return diagnose(reduce(apply, [started, sampled, *facts], JobState(info)), over=over)


OTHERS = (waiting(0), waiting(1), waiting(3))
WAITED = "never entered all_reduce #2 of the default group, which ranks 0-1, 3 have waited in for 40 s"
HELD = "ranks 0-1, 3 have waited for it for 40 s in all_reduce #2 of the default group"
LOADER = SITE + "torch/utils/data/dataloader.py _try_get_data"
QUEUE = "/usr/lib/python3.11/queue.py get"
LOCK = "/usr/lib/python3.11/threading.py wait"
PROCESS = "/usr/lib/python3.11/multiprocessing/process.py"
FORK = "/usr/lib/python3.11/multiprocessing/popen_fork.py wait"
JOIN = "/usr/lib/python3.11/threading.py join"

AWAY = [
    (absent(2), f"rank 2 {WAITED}; it is in Cell In[3], line 3: next(loader)"),
    (absent(2, 3, LOADER, QUEUE, LOCK), "it waits for its DataLoader in Cell In[3], line 3"),
    (absent(2, 3, QUEUE, LOCK), "it waits for a queue in Cell In[3], line 3"),
    (absent(2, 3, LOCK), "it waits for a lock in"),
    (absent(2, 3, PROCESS + " join", FORK), "it waits for a process in"),
    (absent(2, 3, SITE + "filelock/_api.py acquire"), "it waits for a file's lock in"),
    (absent(2, 3, SITE + "requests/sessions.py get"), "it waits for a server in"),
    (absent(2, 7), "it is in Cell In[3], line 7: time.sleep(1); flock(file, LOCK_EX)"),
    (absent(2, 3, JOIN), "it waits for a thread in"),
    (
        absent(2, 3, SITE + "torch/serialization.py save"),
        "it saves or loads a checkpoint in Cell In[3]",
    ),
    (absent(2, 3, SITE + "torch/_dynamo/convert_frame.py compile"), "it compiles in Cell In[3], line 3"),
    (absent(2, 3, "/usr/lib/python3.11/asyncio/queues.py get"), "it waits in an await in Cell In[3], line 3"),
    (absent(2, 4), "it sleeps in Cell In[3], line 4: time.sleep(100)"),
    (absent(2, state=BUSY), f"rank 2 {WAITED}; it is held by something in C in Cell In[3], line 3"),
    (
        rank(2, BUSY, stack(3)),
        f"rank 2 is held by something in C in Cell In[3], line 3: next(loader); {HELD}",
    ),
    (
        rank(2, STOPPED, stack(3)),
        "rank 2 is stopped, by a signal or a debugger, last seen in Cell In[3], line 3: next(loader);",
    ),
    (rank(2, STOPPED), f"rank 2 is stopped, by a signal or a debugger; {HELD}"),
    (rank(2, BEGINS), f"rank 2 is still starting; {HELD}"),
    (rank(2, ENDED, note="exit code 0"), f"rank 2 {WAITED}; it has returned"),
    (rank(2, ENDED, note="it has returned; child processes: 1 worker sleeping"), "; it has returned"),
    (rank(2, ENDED, note="signal 9"), f"rank 2 {WAITED}; it has ended (signal 9)"),
    (rank(2, RUNS, stack(3)), f"rank 2 {WAITED}"),  # the rank has no group at all
]


@pytest.mark.parametrize(("sample", "text"), AWAY)
def test_names_the_rank_that_the_others_wait_for(sample, text):
    diagnosis = said(*OTHERS, sample)

    assert diagnosis is not None
    assert text in describe(diagnosis)
    assert (diagnosis.ranks, diagnosis.sure, diagnosis.time) == ((2,), True, NOW)


def test_points_at_the_line_and_tells_what_was():
    diagnosis = said(*OTHERS, absent(2), over=True)

    assert diagnosis.frame == cell(3)
    assert "which ranks 0-1, 3 had waited in for 40 s; it was in Cell In[3], line 3" in describe(diagnosis)


def test_tells_how_a_rank_left():
    died = ev.RankExited(120.0, 0, 2, 0, 0, signal=9)
    failed = ev.RankFailed(120.0, 0, 2, 0, 0, Error("ValueError", "no", time=120.0))
    late = ev.RankExited(150.0, 0, 1, 0, 0, signal=15)  # as the job ends all ranks then

    assert "it has ended (killed by SIGKILL)" in describe(said(*OTHERS, facts=[died, late]))
    assert "it has failed (ValueError)" in describe(said(*OTHERS, facts=[failed]))


def test_holds_together_ranks_that_are_absent_at_several_places():
    diagnosis = said(waiting(0), absent(1, 4), absent(2), absent(3))

    assert diagnosis.ranks == (1, 2, 3)
    assert "ranks 1-3 never entered" in describe(diagnosis)
    assert "rank 1 sleeps in Cell In[3], line 4: time.sleep(100); ranks 2-3 are in Cell" in describe(
        diagnosis
    )


def test_blames_the_one_that_calls_once_too_often():
    diagnosis = said(waiting(0), *(rank(number, ENDED, note="exit code 0") for number in (1, 2, 3)))

    assert diagnosis.ranks == (0,)
    assert (
        "rank 0 has waited for 40 s in all_reduce #2 of the default group, alone: ranks 1-3 have returned"
        in describe(diagnosis)
    )


DIFFERENT = [
    (
        waiting(2, "all_reduce", "broadcast"),
        "as call #2 of the default group rank 2 entered broadcast, but ranks 0-1, 3 all_reduce",
    ),
    (
        waiting(2, "all_reduce", "all_reduce", sizes=((8,),), dtypes=("float32",)),
        "rank 2 entered all_reduce float32[8], but ranks 0-1, 3 all_reduce float32[4]",
    ),
    (
        waiting(2, "all_reduce", "all_reduce", sizes=((4,),), dtypes=("float64",)),
        "rank 2 entered all_reduce float64[4], but",
    ),
    # Rank 2 went on: a broadcast's root waits for nobody.
    (waiting(2, "all_reduce", "broadcast", "barrier", line=4), "rank 2 entered broadcast, but"),
]


@pytest.mark.parametrize(("sample", "text"), DIFFERENT)
def test_names_the_rank_that_calls_something_else(sample, text):
    sizes = {"sizes": ((4,),), "dtypes": ("float32",)} if "[" in text else {}
    diagnosis = said(*(waiting(number, **sizes) for number in (0, 1, 3)), sample)

    assert text in describe(diagnosis)
    assert (diagnosis.ranks, diagnosis.sure) == ((2,), True)


def test_names_both_of_two_that_call_different_things():
    diagnosis = said(waiting(0), waiting(1, "all_reduce", "barrier"), world=2)

    assert (diagnosis.ranks, diagnosis.sure) == ((0, 1), True)
    assert "rank 0 entered all_reduce, but rank 1 barrier" in describe(diagnosis)


def test_lets_what_may_differ_differ():
    ops = "all_to_all", "all_to_all"
    diagnosis = said(waiting(0, *ops, sizes=((4,),)), waiting(1, *ops, sizes=((9,),)), absent(2), world=3)

    assert diagnosis.ranks == (2,)


def sub(name, ranks, number=1, *, since=100.0, done=False):
    return Group(name, ranks, (Collective(number, "barrier", since, done),))


def inside(number, *groups):
    return rank(number, RUNS, stack(2, "barrier"), groups)


def test_follows_who_waits_in_another_group():
    all_, pair = (0, 1, 2, 3), (2, 3)
    diagnosis = said(
        inside(0, sub("0", all_)),
        inside(1, sub("0", all_)),
        inside(2, Group("0", all_), sub("7", pair)),
        rank(3, RUNS, stack(4), (Group("0", all_), Group("7", pair))),
    )

    assert (diagnosis.ranks, diagnosis.sure) == ((3,), True)


def test_tells_a_circle_of_groups():
    first, second = (0, 1), (1, 2)
    diagnosis = said(
        inside(0, sub("1", first), Group("3", (0, 2))),
        inside(1, Group("1", first), sub("2", second)),
        inside(2, Group("2", second), sub("3", (2, 0))),
        world=3,
    )
    crossed = said(
        inside(0, sub("1", first), Group("2", first)), inside(1, Group("1", first), sub("2", first)), world=2
    )

    assert (diagnosis.ranks, diagnosis.sure) == ((0, 1, 2), True)
    assert (crossed.ranks, crossed.sure) == ((0, 1), True)
    assert (
        "ranks 0-1 wait for each other: rank 0 for rank 1 in barrier #1 of group 1 (ranks 0-1)"
        in describe(crossed)
    )


def meets(number):
    return rank(number, RUNS, stack(1, "init_process_group", SITE + "torch/distributed/rendezvous.py f"))


def test_names_who_does_not_meet_the_others():
    diagnosis = said(meets(0), meets(1), rank(2, RUNS, stack(4)), world=3)

    assert (diagnosis.ranks, diagnosis.sure) == ((2,), True)
    assert "rank 2 never entered init_process_group, where ranks 0-1 are waiting; it sleeps" in describe(
        diagnosis
    )


def test_names_who_does_not_meet_the_others_again():
    left = default(*calls("all_reduce", done=1), ranks=())
    first = rank(0, RUNS, stack(1, "init_process_group"), left)
    diagnosis = said(first, rank(1, RUNS, stack(4), left), world=2)

    assert (diagnosis.ranks, diagnosis.sure) == ((1,), True)


def test_waits_by_a_handle_are_waits():
    handle = rank(0, RUNS, stack(5), default(*calls("all_reduce"), ranks=(0, 1)))
    other = rank(1, RUNS, stack(3), default(ranks=(0, 1)))

    assert said(handle, other, world=2).ranks == (1,)


WAIT_TENSOR = "return torch.ops._c10d_functional.wait_tensor(tensor)"
FUNCTIONAL = SITE + "torch/distributed/_functional_collectives.py"
SAVES = Frame(SITE + "torch/distributed/checkpoint/state_dict.py", 9, "get_model_state_dict")
COMPILES = Frame(SITE + "torch/_dynamo/convert_frame.py", 9, "compile")


def waits_for_a_tensor(number, groups, *above):
    """Return a rank that waits in a collective of a DTensor or of compiled code."""
    waits = Frame(FUNCTIONAL, 9, "wait_tensor", WAIT_TENSOR), Frame(SITE + "torch/_ops.py", 9, "redispatch")
    return rank(number, RUNS, (Thread("main", (cell(2), *above, *waits)),), groups)


@pytest.mark.parametrize("above", [(), (SAVES,), (COMPILES,)], ids=["", "saves", "compiles"])
def test_who_waits_for_a_tensor_of_other_ranks_waits_for_them_whatever_for(above):
    group_0, group_1 = (Group(name, (0, 1), calls("all_gather")) for name in ("0", "1"))
    first = waits_for_a_tensor(0, (group_0, Group("1", (0, 1))), *above)
    diagnosis = said(first, inside(1, Group("0", (0, 1)), group_1), world=2)

    assert (diagnosis.ranks, diagnosis.sure, diagnosis.busy) == ((0, 1), True, False)
    assert "ranks 0-1 wait for each other: rank 0 for rank 1 in all_gather #1" in describe(diagnosis)

    diagnosis = said(
        waits_for_a_tensor(0, (group_0,), *above), inside(1, *default(*calls("barrier"))), world=2
    )
    assert not diagnosis.busy
    assert "rank 0 waits in all_gather #1 of the default group (Cell In[3], line 2" in describe(diagnosis)


def test_who_saves_after_its_calls_are_done_does_not_hang():
    assert said(*OTHERS, absent(2, 3, f"{SAVES.filename} {SAVES.name}")).busy


UNSURE = [
    # No sample of rank 3; one without its calls.
    (waiting(0), waiting(1), waiting(2)),
    (waiting(0), waiting(1), waiting(2), rank(3, RUNS, stack(3), (), "its recorder can't be read")),
    # All ranks are in the call.
    (*OTHERS, waiting(2)),
    # gloo doesn't record a receive.
    (
        *(rank(number, RUNS, stack(6, "recv")) for number in (0, 1)),
        rank(2, RUNS, stack(3)),
        rank(3, RUNS, stack(3)),
    ),
    (
        waiting(0),
        waiting(1),
        waiting(2),
        rank(3, RUNS, stack(6, "recv"), default(*calls("all_reduce", done=1))),
    ),
    # Nothing shows for which rank the handle of an irecv waits.
    (waiting(0), waiting(1), waiting(2), absent(3, 5)),
    (absent(0, 5), absent(1, 4), absent(2, 4), absent(3, 4)),
]


@pytest.mark.parametrize("samples", UNSURE)
def test_is_unsure_where_the_facts_say_no_more(samples):
    diagnosis = said(*samples)

    assert not diagnosis.sure
    assert describe(diagnosis).startswith("unsure: ")


def test_takes_an_absence_from_before_the_others_waited_for_nothing():
    early = ev.Sampled(99.0, 1, 0, "quiet", (absent(2),))
    facts = [ev.WorkersStarted(1.0, 1, 0, 0, (2,), 4), early]

    assert not said(*OTHERS, facts=facts).sure


def test_tells_who_is_slow_from_who_hangs():
    busy = [rank(number, RUNS, stack(3), default(*calls("all_reduce", done=1))) for number in range(4)]
    diagnosis = said(*busy)

    assert (
        describe(diagnosis)
        == "no rank waits in a collective: ranks 0-3 are in Cell In[3], line 3: next(loader)"
    )
    assert (diagnosis.ranks, diagnosis.sure) == ((), True)
    assert said(*busy[:3], rank(3, STOPPED)).ranks == (3,)


def test_says_nothing_of_a_job_that_moves():
    assert said(*(waiting(number, since=NOW - 0.1) for number in (0, 1, 3)), absent(2)) is None
    assert diagnose(JobState(JobInfo("job"))) is None


def test_forgets_the_samples_of_an_earlier_round():
    again = ev.WorkersStarted(150.0, 0, 1, 1, (0, 1, 2, 3), 4)

    assert said(*OTHERS, absent(2), facts=[again]) is None


def point_to_point(number, op, arguments, line=6, groups=None):
    thread = Thread("main", (cell(line), Frame(C10D, 9, op)), tuple(arguments.items()))
    return rank(number, RUNS, (thread,), groups or default(*calls("barrier", done=1)))


def test_a_send_that_is_being_received_accuses_nobody():
    diagnosis = said(
        point_to_point(0, "send", {"group": "0", "dst": "1", "tag": "0"}),
        point_to_point(1, "recv", {"group": "0", "src": "0", "tag": "0"}),
        absent(2),
        absent(3),
    )

    assert diagnosis is None or not diagnosis.sure


ASYNC = default(*calls("all_reduce", "all_reduce"))


def test_who_receives_while_a_collective_is_under_way_does_not_wait_in_that():
    receive = [
        point_to_point(n, "recv", {"group": "0", "src": str(n - 1), "tag": "0"}, groups=ASYNC)
        for n in (1, 2, 3)
    ]
    diagnosis = said(absent(0, 4), *receive)

    assert (diagnosis.ranks, diagnosis.sure) == ((0,), True)
    assert "rank 0 never entered all_reduce #2 of the default group" in describe(diagnosis)


def test_a_ring_and_a_monitored_barrier_are_told_while_a_collective_is_under_way():
    ring = [
        point_to_point(n, "recv", {"group": "0", "src": str((n - 1) % 4), "tag": "0"}, groups=ASYNC)
        for n in range(4)
    ]
    monitored = [rank(n, RUNS, stack(2, "monitored_barrier"), ASYNC) for n in (0, 1, 3)]
    elsewhere = rank(2, RUNS, stack(4), default(*calls("all_reduce", "all_reduce", done=2)))

    assert "ranks 0-3 wait for each other: rank 0 waits in recv from rank 3" in describe(said(*ring))
    assert "rank 2 never entered monitored_barrier" in describe(said(*monitored, elsewhere))


def test_who_is_waited_for_in_a_send_is_named_only_if_nothing_had_moved_for_long():
    sends = point_to_point(0, "send", {"group": "0", "dst": "1", "tag": "0"})
    fact = ev.Sampled(NOW + 1, 0, 0, "asked", (sends, absent(1, 4)))

    sure = said(sends, absent(1, 4), world=2)
    unsure = said(world=2, facts=[fact])

    assert (sure.ranks, sure.sure, sure.frame) == ((1,), True, cell(4))
    assert (
        "rank 0 waits in send to rank 1 (Cell In[3], line 6: dist.recv(t, 1)); rank 1 sleeps in"
        in describe(sure)
    )
    assert (unsure.ranks, unsure.sure) == ((1,), False)


def transfer(op, peer, *, done=False):
    """Return a group of a pipeline's two stages, with NCCL's record of one stage's call."""
    return Group("pp", (0, 2), (Collective(8, op, 95.0, done, p2p=True, peer=peer),), "nccl", "mesh_pp")


def test_who_receives_with_nccl_isnt_named_and_who_has_yet_to_send_is_unsure():
    """Ranks 0 and 1 are the first stage, 2 and 3 the second; rank 2 waits for data from rank 0."""
    first, second = (
        Group(name, ranks, calls("all_reduce")) for name, ranks in (("a", (0, 1)), ("b", (2, 3)))
    )
    away = replace(second, calls=())
    diagnosis = said(
        rank(0, RUNS, absent(0, 3, LOADER, QUEUE, LOCK).threads, (replace(first, calls=()),)),
        rank(1, RUNS, stack(3), (replace(first, calls=()),)),
        rank(2, RUNS, stack(1), (away, transfer("recv", 0))),
        rank(3, RUNS, stack(2), (second,)),
    )

    assert (diagnosis.ranks, diagnosis.sure) == ((0,), False)
    assert "rank 2 waits in recv from rank 0 (Cell In[3], line 1" in describe(diagnosis)
    assert "rank 0 waits for its DataLoader" in describe(diagnosis)


@pytest.mark.parametrize("other", ["done", "elsewhere"])
def test_a_transfer_of_nccls_that_is_done_or_not_waited_for_holds_no_rank(other):
    recv = transfer("recv", 0, done=other == "done")
    groups = (*default(*calls("all_reduce", done=1), ranks=(0, 1)), recv)
    below = () if other == "done" else (LOADER,)
    diagnosis = said(
        waiting(0, groups=default(*calls("all_reduce", "all_reduce"), ranks=(0, 1))),
        rank(1, RUNS, stack(3, *below), groups),
        world=2,
    )

    assert (diagnosis.ranks, diagnosis.sure) == ((1,), True)


def test_a_send_of_nccls_that_is_being_received_accuses_nobody():
    diagnosis = said(
        rank(0, RUNS, stack(1), (transfer("send", 2),)),
        rank(2, RUNS, stack(1), (transfer("recv", 0),)),
        world=3,
    )

    assert diagnosis is None


def test_one_line_that_calls_a_library_may_be_in_other_groups():
    def inside(number, group):
        groups = (Group(group, (0, 1, 2, 3), calls("all_reduce"), label=group),)
        return rank(
            number, RUNS, (Thread("m", (cell(3), Frame(C10D, 9, "all_reduce")), (("group", group),)),), groups
        )

    diagnosis = said(inside(0, "a"), inside(1, "a"), inside(2, "a"), inside(3, "b"))

    assert diagnosis is None or "in one call" not in describe(diagnosis)


@pytest.mark.parametrize(("world", "named"), [(3, (2,)), (6, (0, 1, 2))])
def test_of_a_call_that_broke_off_the_odd_one_is_named_only_if_all_are_known(world, named):
    def ended(number, size):
        groups = default(*calls("all_reduce", sizes=((size,),), done=0), ranks=tuple(range(world)))
        return rank(number, ENDED, stack(2, "all_reduce"), groups, "signal 6")

    diagnosis = said(ended(0, 8), ended(1, 8), ended(2, 4000), world=world, over=True)

    assert (diagnosis.ranks, diagnosis.sure) == (named, True)
    assert "rank 2 entered all_reduce" in describe(diagnosis)


def failed(number, many, ranks=(0, 1, 2)):
    """Return a rank's sample and failure, in call number ``many``; without ``ranks`` it left its group."""
    closed = Error("RuntimeError", "Connection closed by peer [10.0.0.3]:4242", time=NOW)
    collectives = (Collective(seq, "all_reduce", 100.0 + seq, done=True) for seq in range(1, many + 1))
    groups = default(*collectives, ranks=ranks)
    return rank(number, ENDED, groups=groups), ev.RankFailed(NOW, 0, number, 0, 0, closed)


@pytest.mark.parametrize("ranks", [(0, 1, 2), ()], ids=["in it", "left"])
def test_ranks_that_failed_have_not_left_their_group_before(ranks):
    samples, failures = zip(failed(0, 8, ranks), failed(1, 7, ranks), strict=True)

    assert said(*samples, world=3, facts=failures, over=True).ranks == ()
    assert said(*samples, world=2, facts=failures, over=True).ranks == ()


def test_who_else_was_in_a_group_that_all_have_left_is_not_known_while_a_rank_is_unseen():
    (last, failure), goes_on = failed(0, 8, ()), rank(1, RUNS, stack(4), failed(1, 7, ())[0].groups)

    assert said(last, goes_on, world=3, facts=[failure], over=True).ranks == ()
    diagnosis = said(last, goes_on, world=2, facts=[failure], over=True)
    assert (diagnosis.ranks, diagnosis.sure) == ((0, 1), True)
    assert "rank 0 made 8 calls in the default group, and rank 1 made 7 before leaving it" in describe(
        diagnosis
    )
