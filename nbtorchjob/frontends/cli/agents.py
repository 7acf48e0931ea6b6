"""``nbtorchjob mcp``: verbs as tools of the Model Context Protocol, for an agent or another program.

A tool call runs the command with ``--json`` in its own process: an agent gets the same documents and errors,
and what a submitted script prints or breaks doesn't reach the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nbtorchjob
from nbtorchjob import errors
from nbtorchjob.commands.table import JSON, Verb
from nbtorchjob.errors import LineError
from nbtorchjob.frontends.cli.commands import CELLS_ONLY, COMMANDS
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.install import environment
from nbtorchjob.spec import Option, options

if TYPE_CHECKING:
    from mcp.server import Server

_TYPES = {"int": "integer", "number": "number", "switch": "boolean", "text": "string"}
_EXPECTED = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "array": "an array of strings",
}
# Options for people at a terminal, or set by the server itself.
_FOR_PEOPLE = {*CELLS_ONLY, "json", "detach", "quiet", "follow", "zip", "dry-run", "rehearse"}
_WRITES_HERE = {"sync"}  # an option of `files`, which otherwise only reads
_NOT_FOR_AGENTS = _FOR_PEOPLE | _WRITES_HERE
_TAIL = 200  # lines of a log, if no number is requested
_REFUSED = (2, 3, 4)  # the command's exit codes for requests that it didn't carry out
_INSTRUCTIONS = "Distributed torch jobs, on this machine and on Kubernetes. Times are in seconds."


class Tool(FrozenDataclass):
    """A verb as a tool: its JSON schema, and the command line of a call."""

    name: str
    verb: Verb
    reads_only: bool = True
    ends: bool = False  # whether it ends something for good

    @property
    def options(self) -> Mapping[str, Option]:
        """The verb's options by name; for a verb that starts a job, also the options of all jobs."""
        all_options = (*self.verb.options, *(options.TABLE if self.verb.any_option else ()))
        return {o.key: o for o in all_options if o.key not in _NOT_FOR_AGENTS}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        words, needed = _words(self.verb)
        properties = dict(words)
        for key, o in self.options.items():
            about = o.help if not o.metavar else f"{o.help} ({o.metavar})"
            if o.repeated:
                properties[key] = {"type": "array", "items": {"type": "string"}, "description": about}
            else:
                choices = {"enum": [*o.choices]} if o.choices else {}
                properties[key] = {"type": _TYPES[o.takes], "description": about, **choices}
        return {
            "type": "object",
            "properties": properties,
            "required": needed,
            "additionalProperties": False,
        }

    def command(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the words of the command; raises ``LineError`` for arguments that the schema refuses."""
        words, needed = _words(self.verb)
        properties = self.schema["properties"]
        arguments = {name: value for name, value in arguments.items() if value is not None}
        unknown = sorted(arguments.keys() - properties.keys())
        if unknown:
            raise LineError(f"{self.name}: unknown argument {unknown[0]!r}; see the tool's schema")
        if missing := [name for name in needed if arguments.get(name) in (None, "", [])]:
            raise LineError(f"{self.name} needs the argument {missing[0]!r}")
        for name, value in arguments.items():
            type_ = properties[name]["type"]
            if not _fits(value, type_):
                raise LineError(f"{self.name}: {name} must be {_EXPECTED[type_]}, got {value!r}")
        line = [self.verb.name]
        for key, option in self.options.items():
            flag = option.flags[-1]
            value = arguments.get(key, [])
            if option.takes == "switch":
                line += [flag] if value else []
            else:
                line += [f"{flag}={item}" for item in _listed(value)]
        if self.verb.name == "logs" and "tail" not in arguments:
            line.append(f"--tail={_TAIL}")
        line += ["--detach"] if self.verb.name == "run" else []
        line += [JSON.flags[-1]] if JSON in self.verb.options else []
        for name in words:
            if name == "arguments":
                line += ["--", *map(str, arguments.get(name, ()))]
                continue
            for word in map(str, _listed(arguments.get(name, []))):
                if not word:  # the command would take the newest job
                    raise LineError(f"{self.name}: {name} must not be empty")
                if word.startswith("-"):
                    raise LineError(f"{self.name}: {name} must not begin with '-', got {word!r}")
                line.append(word)
        return line


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        *(
            Tool(name, COMMANDS[name])
            for name in ("list", "status", "describe", "logs", "stacks", "diff", "files")
        ),
        Tool("get", COMMANDS["get"], reads_only=False),
        Tool("submit", COMMANDS["run"], reads_only=False),
        Tool("cancel", COMMANDS["cancel"], reads_only=False, ends=True),
    )
}


def _words(verb: Verb) -> tuple[dict[str, Any], list[str]]:
    """Return the properties of a verb's words, by name and in order, and the required ones."""
    job = {"type": "string", "description": "a job's name or id"}
    if verb.name == "run":
        script = {"type": "string", "description": "SCRIPT.py:FUNCTION, relative to the server's folder"}
        arguments = {
            "type": "array",
            "items": {"type": "string"},
            "description": "the function's arguments, as words of a command: 0.1 --lr 3",
        }
        return {"script": script, "arguments": arguments}, ["script"]
    if verb.words == "NAME OTHER":
        return {"name": job, "other": job}, ["name", "other"]
    if "PATH" in verb.words:
        path = {"type": "string", "description": "artifacts/… or checkpoints/…, as files lists them"}
        folder = {"type": "string", "description": "where to; the server's folder by default"}
        own = {"folder": folder} if "FOLDER" in verb.words else {}
        return {"name": job, "path": path, **own}, ["name", *(["path"] if own else [])]
    if verb.words == "NAME...":
        return {"names": {"type": "array", "items": job, "minItems": 1}}, ["names"]
    if verb.words == "[NAME]":
        return {"name": {**job, "description": "a job's name or id; the newest job by default"}}, []
    return {}, []


def _fits(value: Any, type_: str) -> bool:
    """Whether a value has a schema's type; numbers and strings are interchangeable, as in a command."""
    if type_ == "array":
        return isinstance(value, list) and all(_fits(item, "string") for item in value)
    if type_ == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def server() -> Server[Any]:
    """Return the server; raises ``NotInstalledError`` if the extra ``mcp`` isn't installed."""
    with errors.needs_extra("mcp", "nbtorchjob mcp"):
        from mcp import types
        from mcp.server import Server

    async def listed(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.verb.help,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads_only, destructive_hint=tool.ends
                    ),
                )
                for tool in TOOLS.values()
            ]
        )

    async def called(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        code, out, err = await _answer(params.name, params.arguments or {})
        texts = [text for text in (out, err) if text] if code not in _REFUSED else [err or out]
        content: list[Any] = [types.TextContent(type="text", text=text) for text in texts]
        document = None
        with suppress(ValueError):  # a log, or several documents
            document = json.loads(out)
        structured = document if isinstance(document, dict) else None
        return types.CallToolResult(content=content, structured_content=structured, is_error=code in _REFUSED)

    return Server(
        "nbtorchjob",
        version=nbtorchjob.__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


async def _answer(name: str, arguments: Mapping[str, Any]) -> tuple[int, str, str]:
    try:
        if name not in TOOLS:
            raise LineError(f"there is no tool {name!r}; available: {', '.join(TOOLS)}")
        line = TOOLS[name].command(arguments)
    except LineError as exc:
        return _REFUSED[0], "", str(exc)
    try:
        process = await asyncio.create_subprocess_exec(
            *environment.command("nbtorchjob"),
            *line,
            stdin=asyncio.subprocess.DEVNULL,  # the server's own stdin carries the protocol
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as exc:  # arguments that are too long, have a NUL, or half a character
        return _REFUSED[0], "", f"{name}: the command can't be run: {exc}"
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    text, aside = out.decode(errors="replace"), err.decode(errors="replace")
    if f"--tail={_TAIL}" in line and text.count("\n") >= _TAIL:
        aside += f"At most the last {_TAIL} lines are shown; raise tail to see more.\n"
    return process.returncode or 0, text, aside


def serve() -> None:
    """Speak the protocol over stdin and stdout until the client closes them."""
    mcp_server = server()
    from mcp import stdio_server

    async def spoken() -> None:
        async with stdio_server() as (read, write):
            await mcp_server.run(read, write, mcp_server.create_initialization_options())

    asyncio.run(spoken())
