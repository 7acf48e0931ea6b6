from nbtorchjob.runtime.facts.errors import Error, Frame, from_exception
from nbtorchjob.state.text.tracebacks import frames_text, summary

CELL = ("Cell In[3]", 'x = 1\nfor epoch in range(3):\n    x = x + 1\n    raise ValueError("no")\n')
SOURCES = {"<cell-3>": CELL}.get


def test_a_cells_frame_shows_its_own_lines():
    error = Error("ValueError", "no", (Frame("<cell-3>", 4, "<module>", 'raise ValueError("no")'),))

    assert frames_text(error, SOURCES) == "\n".join(
        [
            "Cell In[3], line 4",
            "      2 for epoch in range(3):",
            "      3     x = x + 1",
            '----> 4     raise ValueError("no")',
            "ValueError: no",
        ]
    )


def test_another_files_frame_shows_the_line_the_node_sent():
    error = Error("KeyError", "'a'", (Frame("/srv/x.py", 12, "f", "d['a']"), Frame("/srv/y.so", 0, "g")))

    assert frames_text(error, SOURCES) == "\n".join(
        ["File /srv/x.py:12, in f", "---> 12 d['a']", "File /srv/y.so:0, in g", "KeyError: 'a'"]
    )


def test_without_the_source_the_nodes_line_is_used():
    error = Error("ValueError", "no", (Frame("<cell-3>", 9, "train", "step()"),))
    expected = "File <cell-3>:9, in train\n----> 9 step()\nValueError: no"

    assert frames_text(error) == expected
    assert frames_text(error, SOURCES) == expected  # the cell's text, an older one, has no line 9


def test_of_a_nodes_own_error_the_heading_has_the_first_line():
    error = Error(
        "nbtorchjob.runtime.install.packages.InstallError", "pip couldn't: no\na needs b\nc needs d"
    )

    assert summary(error) == "pip couldn't: no"
    assert frames_text(error) == "a needs b\nc needs d"


def test_a_chain_is_drawn_as_python_draws_it():
    first = Error("OSError", "disk")
    direct = Error("ValueError", "no", cause=first)
    during = Error("ValueError", "no", cause=first, direct=False)

    assert frames_text(direct) == (
        "OSError: disk\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "ValueError: no"
    )
    assert "During handling of the above exception, another exception occurred:" in frames_text(during)


def test_a_group_follows_its_first_exception():
    group = Error("ExceptionGroup", "two (2 sub-exceptions)", cause=Error("E", "no"), member=True)

    assert frames_text(group) == (
        "E: no\n\n"
        "The above exception is the first one of the following group:\n\n"
        "ExceptionGroup: two (2 sub-exceptions)"
    )


def test_notes_and_left_out_frames_are_shown():
    error = Error("E", "", (Frame("", 0, "… 7 frames …"),), notes=("try 2\nor 3",))

    assert frames_text(error) == "    … 7 frames …\nE\ntry 2\nor 3"


def test_terminal_sequences_are_taken_out():
    error = Error("E", "\x1b[31mred\x1b[0m\x07", (Frame("/a\x1b]0;x\x07.py", 1, "f\r", "x\x00"),))
    text = frames_text(error)

    assert "E: red" in text
    assert not set(text) & {"\x1b", "\x07", "\r", "\x00"}


def test_a_real_exception_makes_the_whole_way():
    code = compile(CELL[1], "<cell-3>", "exec")
    try:
        exec(code, {})
    except ValueError as exc:
        error = from_exception(exc)
    lines = frames_text(error, SOURCES).splitlines()

    assert lines[-5:] == [
        "Cell In[3], line 4",
        "      2 for epoch in range(3):",
        "      3     x = x + 1",
        '----> 4     raise ValueError("no")',
        "ValueError: no",
    ]


def test_the_summary_is_the_first_line_of_the_message():
    assert summary(Error("ValueError", "no\nnever")) == "ValueError: no"
    assert summary(Error("StopIteration", "")) == "StopIteration"


def test_of_nccls_messages_the_summary_has_the_last_line():
    message = (
        "NCCL error in: /pytorch/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), "
        "NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
    )

    line = summary(Error("torch.distributed.DistBackendError", message))

    last_line = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
    assert line == f"torch.distributed.DistBackendError: {last_line}"


def test_where_in_its_cpp_a_library_raised_it_is_no_part_of_the_summary():
    message = "[/pytorch/third_party/gloo/gloo/transport/tcp/buffer.cc:81] Timed out waiting 20000ms\n frames"

    assert summary(Error("RuntimeError", message)) == "RuntimeError: Timed out waiting 20000ms"
