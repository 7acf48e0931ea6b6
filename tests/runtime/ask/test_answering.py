"""A node's socket: the questions that it answers; no question and no client ends the node."""

import json
import socket
import stat
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.backends.local.sockets import SocketLine
from nbtorchjob.backends.talk import Conversation, Talk
from nbtorchjob.errors import AskError
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.ask.questions import Messages
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

KEY = questions.node_key(b"k" * 32, "run", 0)


@pytest.fixture
def node(folder):
    """Return a function that answers as a node with these handlers; it returns a function that connects."""

    def serve(**handlers):
        answering.serve(str(folder), KEY, handlers)

        def connect():
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(LIMIT)
            questions.within(str(folder), questions.SOCKET, peer.connect)
            return peer

        return connect

    return serve


def echo(asked):
    yield {"asked": asked}


def into(asked):
    def handler(question):
        asked.append(question)
        return ()

    return handler


def ask(peer, question="echo", key=KEY, **more):
    return hear(peer, Conversation(0, key, {"question": question, **more}))


def hear(peer, talk):
    with peer:
        while not talk.over:
            data = peer.recv(1 << 16)
            if not data:
                talk.end("cut")
            if message := talk.hear(data):
                peer.sendall(message)
    return talk.answer


def test_a_question_is_answered_with_records(node):
    def count(question):
        return ({"number": number} for number in range(question["to"]))

    connect = node(echo=echo, count=count)

    assert ask(connect(), deep={"a": [1, "é"]}).records == (
        {"asked": {"question": "echo", "deep": {"a": [1, "é"]}}},
    )
    answer = ask(connect(), "count", to=3)
    assert (answer.node, answer.trouble) == (0, "")
    assert answer.records == ({"number": 0}, {"number": 1}, {"number": 2})


def test_the_socket_is_for_this_user_and_may_lie_deep(node, folder):
    deep = folder / ("d" * 120)
    deep.mkdir()
    (deep / questions.SOCKET).touch()  # left by an earlier attempt
    answering.serve(str(deep), KEY, {"echo": echo})

    mode = (deep / questions.SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    peer = socket.socket(socket.AF_UNIX)
    questions.within(str(deep), questions.SOCKET, peer.connect)
    assert ask(peer).trouble == ""


def raises(asked):
    yield {"first": 1}
    raise ValueError("two\nlines")


def called(asked):
    raise RecursionError


@pytest.mark.parametrize(
    ("question", "records", "trouble"),
    [
        ("raises", ({"first": 1},), "it can't answer: ValueError: two lines"),
        ("called", (), "it can't answer: RecursionError: "),
        ("no_json", (), "it can't answer: TypeError: Object of type set is not JSON serializable"),
        ("long", (), "it can't answer: WireError: 1048597 bytes are more than the 1048576"),
        ("other", (), "it knows no question 'other'"),
        (None, (), "it knows no question None"),
    ],
)
def test_what_can_not_be_answered_is_said(question, records, trouble, node):
    handlers = {
        "raises": raises,
        "called": called,
        "no_json": lambda _: [{"a": {1}}],
        "long": lambda _: [{"a": "x" * questions.RECORD_BYTES}],
    }
    connect = node(echo=echo, **handlers)
    answer = ask(connect(), question)

    assert answer.records == records
    assert answer.trouble.startswith(trouble)
    assert ask(connect()).trouble == ""


def test_an_answer_without_an_end_is_given_one(node):
    def flood(question):
        while True:
            yield {"a": "x" * 500_000}

    answer = ask(node(flood=flood)(), "flood")

    assert answer.trouble == "the answer is longer than allowed"
    assert len(json.dumps(answer.records)) <= questions.ANSWER_BYTES


def test_who_has_another_key_is_refused_and_does_not_believe_it(node):
    inbox: list[object] = []
    connect = node(echo=into(inbox))
    other = questions.node_key(b"k" * 32, "run", 1)

    assert ask(connect(), key=other).trouble == (
        "the answer isn't from a node of this job: it isn't signed with this job's key"
    )
    with connect() as peer:  # a client that doesn't check the node's messages
        number = json.loads(peer.recv(4096)[36:])["number"]
        messages = Messages(other)
        messages.read(bytearray(messages_of(other, {"number": number})), 4096)
        messages.number(number)
        peer.sendall(messages.write({"question": "echo"}, 4096))
        assert b"it isn't signed with this job's key" in peer.recv(4096)
    assert inbox == []


def messages_of(key, *contents):
    messages = Messages(key)
    return b"".join(messages.write(content, 4096) for content in contents)


def test_a_question_that_was_overheard_is_not_answered_again(node):
    inbox: list[object] = []
    connect = node(echo=into(inbox))
    talk = Conversation(0, KEY, {"question": "echo"})
    with connect() as peer:
        message = talk.hear(peer.recv(4096))
        peer.sendall(message)
        talk.hear(peer.recv(4096))
    assert talk.over
    assert len(inbox) == 1

    with connect() as peer:
        peer.recv(4096)
        peer.sendall(message)
        assert b"it isn't signed" in peer.recv(4096)
    assert len(inbox) == 1


def test_an_answer_that_was_overheard_is_not_believed_again(node):
    connect, overheard = node(echo=echo), []
    talk = Conversation(0, KEY, {"question": "echo", "of": 1})
    with connect() as peer:
        while not talk.over:
            overheard.append(peer.recv(4096))
            if message := talk.hear(overheard[-1]):
                peer.sendall(message)
    assert talk.answer.records == ({"asked": {"question": "echo", "of": 1}},)

    again = Conversation(0, KEY, {"question": "echo", "of": 1})
    for data in overheard:
        again.hear(data)
    assert again.answer.records == ()
    assert again.answer.trouble.startswith("the answer isn't from a node of this job")


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 100,  # a length over every limit
        questions.Messages(KEY).write({"question": "echo"}, 4096),  # in place of another message
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2,
    ],
)
def test_what_is_no_question_is_refused(sent, node):
    connect = node(echo=echo)
    with connect() as peer:
        peer.recv(4096)
        peer.sendall(sent)
        assert b"it can't take the question" in peer.recv(4096)
    assert ask(connect()).trouble == ""


def test_half_a_question_and_who_leaves_hold_nobody_up(node):
    def much(question):
        for _ in range(100):
            yield {"a": "x" * 100_000}

    connect = node(echo=echo, much=much)
    halves = [connect() for _ in range(answering.MOST - 2)]
    for half in halves:
        half.sendall(b"\0\0\1\0half")
    leaver = Conversation(0, KEY, {"question": "much"})
    with connect() as peer:
        peer.sendall(leaver.hear(peer.recv(4096)))

    assert ask(connect()).trouble == ""
    for half in halves:
        half.close()


def test_two_are_answered_at_once_and_a_flood_is_turned_away(node):
    go = threading.Event()

    def slow(question):
        yield {"began": True}
        assert go.wait(LIMIT)

    connect = node(echo=echo, slow=slow)
    talks = [(connect(), Conversation(0, KEY, {"question": "slow"})) for _ in range(answering.MOST)]
    for peer, talk in talks:
        peer.sendall(talk.hear(peer.recv(4096)))
    for peer, talk in talks:
        while not talk.answer.records:
            talk.hear(peer.recv(4096))

    for _ in range(20):
        assert ask(connect()).trouble == "it is already answering 8 questions: try again"
    go.set()
    assert {hear(peer, talk).trouble for peer, talk in talks} == {""}


def test_conversations_that_go_on_take_no_place_from_questions(node):
    def stays(question):
        yield {"said": question.hear(LIMIT)}
        while question.hear(LIMIT) is not None:
            pass

    connect = node(echo=echo, stays=stays)
    with ExitStack() as talks:
        for number in range(answering.MOST + 1):
            conversation = Conversation(0, KEY, {"question": "stays"}, goes_on=True)
            talk = talks.enter_context(Talk(conversation, SocketLine(connect()), LIMIT))
            talk.send({"how": "so"})
            if number < answering.MOST:
                assert talk.hear(LIMIT) == {"said": {"how": "so"}}
        with pytest.raises(AskError, match="it already has 8 of these conversations: end one"):
            talk.hear(LIMIT)
        assert ask(connect()).trouble == ""

    def begun():
        with Talk(
            Conversation(0, KEY, {"question": "stays"}, goes_on=True), SocketLine(connect()), LIMIT
        ) as talk:
            talk.send({"how": "so"})
            try:
                return talk.hear(LIMIT)
            except AskError:
                return None

    assert until(begun) == {"said": {"how": "so"}}


def test_a_question_may_go_on_both_ways(node):
    left: Future[str] = Future()

    def chat(question):
        yield {"said": question.hear(LIMIT)}
        data = b""
        while len(data) < question["size"]:
            data += question.hear(LIMIT)
        yield {"sum": sum(data), "more": question.hear(0)}
        try:
            question.hear(LIMIT)
        except ConnectionError as exc:
            left.set_result(str(exc))
            raise

    data, connect = bytes(range(256)) * 8192, node(chat=chat)
    conversation = Conversation(0, KEY, {"question": "chat", "size": len(data)}, goes_on=True)
    with Talk(conversation, SocketLine(connect()), LIMIT) as talk:
        talk.send({"how": "é"})
        assert talk.hear(LIMIT) == {"said": {"how": "é"}}
        talk.send_all(memoryview(data))
        assert talk.hear(LIMIT) == {"sum": sum(data), "more": None}
        with pytest.raises(TimeoutError):
            talk.hear(0)

    assert left.result(LIMIT) == "whoever asked has left"


def test_why_a_conversation_ends_is_said(node):
    connect = node(raises=raises, echo=echo)
    conversation = Conversation(0, KEY, {"question": "raises"}, goes_on=True)
    with Talk(conversation, SocketLine(connect()), LIMIT) as talk:
        assert talk.hear(LIMIT) == {"first": 1}
        with pytest.raises(AskError, match="it can't answer: ValueError: two lines"):
            talk.hear(LIMIT)
    conversation = Conversation(0, KEY, {"question": "echo"}, goes_on=True)
    with Talk(conversation, SocketLine(connect()), LIMIT) as talk:
        assert talk.hear(LIMIT) == {"asked": {"question": "echo"}}
        assert talk.hear(LIMIT) is None


@given(
    contents=st.lists(
        st.binary() | st.dictionaries(st.text(), st.none() | st.text() | st.integers()), max_size=4
    ),
    cuts=st.lists(st.integers(1, 60)),
)
def test_messages_come_out_as_they_went_in_however_they_were_cut(contents, cuts):
    sent, reader, came, messages = messages_of(KEY, *contents), Messages(KEY), bytearray(), []
    for size in [*cuts, len(sent)]:
        came += sent[:size]
        sent = sent[size:]
        while (content := reader.read(came, 4096)) is not None:
            messages.append(content)

    assert messages == contents
