"""``nbtorchjob mcp``, as a client of the protocol uses it."""

import asyncio
import json
import os
import re
import sys

import pytest

import nbtorchjob
from nbtorchjob.commands.table import JSON
from nbtorchjob.errors import LineError, NotInstalledError
from nbtorchjob.frontends.cli import agents
from nbtorchjob.frontends.cli.commands import COMMANDS
from tests.patience import LIMIT


@pytest.fixture(autouse=True)
def mcp():
    """Return the SDK, which takes half a second to import: only a worker that needs it imports it."""
    return pytest.importorskip("mcp")


SCRIPT = """
def train(lr):
    print("trained with", lr)
    return lr
"""


def texts(result):
    return "\n".join(part.text for part in result.content)


@pytest.mark.torch
def test_a_client_submits_a_job_reads_of_it_and_is_refused_as_the_command_is(mcp, folder):
    (folder / "train.py").write_text(SCRIPT)
    # Without an environment the SDK passes on little more than PATH and HOME.
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "nbtorchjob", "mcp"], env={**os.environ}, cwd=folder
    )

    async def spoken():
        async with mcp.Client(command) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            sent = await client.call_tool(
                "submit", {"script": "train.py:train", "arguments": ["0.5"], "name": "agents"}
            )
            name = json.loads(sent.content[0].text)["job"]["name"]
            await asyncio.to_thread(nbtorchjob.attach(name).wait, LIMIT)
            return (
                tools,
                sent,
                await client.call_tool("list", {}),
                await client.call_tool("logs", {"name": name}),
                await client.call_tool("status", {"name": "nowhere"}),
                await client.call_tool("submit", {"script": "train.py:train", "nnodes": "none"}),
                await client.call_tool("cancel", {"names": ["--all"]}),
                await client.call_tool("diff", {"name": name, "other": name}),
            )

    tools, sent, listed, log, missing, refused, dashed, same = asyncio.run(spoken())
    assert [*tools] == [
        *("list", "status", "describe", "logs", "stacks", "diff", "files", "get", "submit", "cancel")
    ]
    assert not sent.is_error
    assert [job["phase"] for job in listed.structured_content["jobs"]] == ["SUCCEEDED"]
    assert texts(log) == "trained with 0.5\n"
    assert missing.is_error
    assert "there is no job named 'nowhere'" in texts(missing)
    assert refused.is_error
    assert "nnodes" in texts(refused)
    assert dashed.is_error
    assert "must not begin with '-'" in texts(dashed)
    assert same.structured_content["alike"]


@pytest.mark.torch
def test_an_agent_is_told_where_it_sees_the_last_lines_only(mcp, folder):
    (folder / "train.py").write_text(
        "def train():\n    for n in range(250): print('loss=nan', n)\n    print('end')"
    )
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "nbtorchjob", "mcp"], env={**os.environ}, cwd=folder
    )

    async def spoken():
        async with mcp.Client(command) as client:
            sent = await client.call_tool("submit", {"script": "train.py:train"})
            name = json.loads(sent.content[0].text)["job"]["name"]
            await asyncio.to_thread(nbtorchjob.attach(name).wait, LIMIT)
            options = (
                {"grep": "loss=nan"},
                {"all-ranks": True},
                {"grep": "end"},
                {"grep": "nan", "tail": 300},
            )
            return [texts(await client.call_tool("logs", {"name": name, **more})) for more in options]

    cut, cut_too, few, more = asyncio.run(spoken())
    assert cut.startswith("loss=nan 50\n")
    note = "At most the last 200 lines are shown; raise tail to see more.\n"
    assert cut.endswith(note)
    assert cut_too.endswith(note)
    assert few == "end\n"
    assert (more.count("\n"), note in more) == (250, False)


def test_a_tool_imports_none_of_the_modules_beside_its_server(mcp, folder, monkeypatch):
    (folder / "tokenize.py").write_text("raise ImportError('not the standard library')")
    monkeypatch.chdir(folder)

    async def spoken():
        async with mcp.Client(agents.server()) as client:
            return await client.call_tool("list", {})

    listed = asyncio.run(spoken())
    assert not listed.is_error
    assert "jobs" in (listed.structured_content or {})


@pytest.mark.parametrize(
    ("value", "why"), [("a\0b", "null byte"), ("\ud800", "surrogates"), ("a" * (1 << 18), "too long")]
)
def test_an_argument_that_no_process_can_have_is_refused(mcp, value, why):
    async def spoken():
        async with mcp.Client(agents.server()) as client:
            return await client.call_tool("status", {"name": value})

    result = asyncio.run(spoken())
    assert result.is_error
    assert re.match(f"status: the command can't be run: .*{why}", texts(result))


def test_the_schema_of_a_tool_is_that_of_its_verb():
    logs, submit = agents.TOOLS["logs"], agents.TOOLS["submit"]

    assert {"name", "rank", "all-ranks", "grep"} <= logs.schema["properties"].keys()
    assert "follow" not in logs.schema["properties"]
    assert not {"dry-run", "swap", "or-back", "within"}.intersection(submit.schema["properties"])
    assert logs.schema["properties"]["rank"]["type"] == "integer"
    assert submit.schema["properties"]["nproc-per-node"]["type"] == "integer"
    assert submit.schema["required"] == ["script"]
    assert {tool.verb.name for tool in agents.TOOLS.values()} <= COMMANDS.keys()


@pytest.mark.parametrize("tool", agents.TOOLS.values(), ids=lambda tool: tool.name)
def test_no_name_of_a_word_is_one_of_an_option_too(tool):
    words, _ = agents._words(tool.verb)

    assert not words.keys() & tool.options.keys()


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("logs", {"name": "a", "rank": 1}, ["logs", "--rank=1", "--tail=200", "--json", "a"]),
        ("cancel", {"names": ["a", "b"], "gently": True}, ["cancel", "--gently", "--json", "a", "b"]),
        (
            "submit",
            {"script": "t.py:f", "arguments": ["0.1"], "env": ["A=1", "B=2"]},
            ["run", "--env=A=1", "--env=B=2", "--detach", "--json", "t.py:f", "--", "0.1"],
        ),
    ],
)
def test_a_call_is_a_line_of_the_command(name, arguments, line):
    words = agents.TOOLS[name].command(arguments)

    assert words == [word for word in line if word != "--json" or JSON in agents.TOOLS[name].verb.options]


def test_arguments_that_the_schema_refuses_are_named():
    with pytest.raises(LineError, match="unknown argument 'nodes'"):
        agents.TOOLS["submit"].command({"script": "t.py:f", "nodes": 2})
    with pytest.raises(LineError, match="cancel needs the argument 'names'"):
        agents.TOOLS["cancel"].command({})


@pytest.mark.parametrize(
    ("name", "argument", "value", "expected"),
    [
        ("submit", "arguments", "12", "an array of strings, got '12'"),
        ("submit", "arguments", 12, "an array of strings, got 12"),
        ("submit", "arguments", [["12"]], "an array of strings"),
        ("submit", "env", {"A": "1"}, "an array of strings"),
        ("submit", "all-ranks", "false", "true or false, got 'false'"),
        ("submit", "all-ranks", 1, "true or false, got 1"),
        ("submit", "gpu", True, "an integer, got True"),
        ("submit", "image", ["a"], "a string, got"),
        ("cancel", "names", 5, "an array of strings, got 5"),
        ("cancel", "names", "job", "an array of strings, got 'job'"),
        ("status", "name", ["a"], "a string, got"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_its_name(name, argument, value, expected):
    needed = {"script": "t.py:f"} if name == "submit" else {}

    with pytest.raises(LineError, match=f"{name}: {argument} must be {expected}"):
        agents.TOOLS[name].command({**needed, argument: value})


def test_numbers_may_be_texts_and_texts_numbers_and_null_is_nothing():
    words = agents.TOOLS["submit"].command(
        {"script": "t.py:f", "arguments": [0.1, 3], "nnodes": 2, "gpu": "1", "image": None, "env": None}
    )

    assert words == ["run", "--nnodes=2", "--gpu=1", "--detach", "--json", "t.py:f", "--", "0.1", "3"]
    assert agents.TOOLS["status"].command({"name": None}) == ["status", "--json"]


@pytest.mark.parametrize("names", [None, [], [""]])
def test_a_name_that_is_empty_stands_for_no_job(names):
    with pytest.raises(LineError, match=r"cancel needs the argument 'names'|names must not be empty"):
        agents.TOOLS["cancel"].command({"names": names})


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(NotInstalledError, match=r"nbtorchjob mcp needs .*pip install 'nbtorchjob\[mcp\]'"):
        agents.server()
