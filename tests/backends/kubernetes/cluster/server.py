"""The HTTP server: from a request to a verb on a resource, and from a refusal to its Status."""

import asyncio
import json
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aiohttp import web

from tests.backends.kubernetes.cluster import discovery
from tests.backends.kubernetes.cluster.access import Access, Attempt
from tests.backends.kubernetes.cluster.faults import Faults
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import Object, Resource

BODY_LIMIT = 3 * 1024 * 1024
PLAIN_404 = "404 page not found\n"
# kubectl sends no token without TLS, so its kubeconfig has the token in the path.
AS = "/as/"


@dataclass(frozen=True)
class Call:
    """A parsed request: the verb, the object and the user."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]
    body: Object
    user: str
    headers: Mapping[str, str]
    request: web.Request | None = None  # None for a controller in this process
    warnings: list[str] = field(default_factory=list)

    @property
    def http(self) -> web.Request:
        """Return the HTTP request, for handlers that answer with a stream."""
        assert self.request is not None
        return self.request

    @property
    def dry(self) -> bool:
        """Return whether the call is a dry run."""
        return "dryRun" in self.query

    def flag(self, name: str) -> bool:
        """Return a boolean parameter of the query."""
        return self.query.get(name, "") in ("1", "true", "True")


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Server:
    """An HTTP server on a free port of 127.0.0.1; `handle` carries out each call."""

    def __init__(
        self, resources: Iterable[Resource], access: Access, faults: Faults, handle: Handler
    ) -> None:
        self.resources = list(resources)
        self._by_path = {
            (resource.api_version, resource.plural): resource for resource in reversed(self.resources)
        }
        self.requests: list[tuple[str, str]] = []
        self._access, self._faults, self._handle = access, faults, handle
        self._runner: web.AppRunner | None = None
        self.port = 0

    def resource(self, api_version: str, plural: str) -> Resource | None:
        """Return the resource of that name; None if it isn't served."""
        return self._by_path.get((api_version, plural))

    async def start(self) -> None:
        """Start to listen, on the previous port if there was one."""
        app = web.Application(client_max_size=BODY_LIMIT + 1)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    @property
    def running(self) -> bool:
        """Return whether the server listens."""
        return self._runner is not None

    async def stop(self) -> None:
        """Close the port and break all connections."""
        if self._runner is not None:
            # A connection that was accepted but isn't set up when its server closes stays open (Python 3.11).
            for site in self._runner.sites:
                for listener in site._server.sockets:  # type: ignore[union-attr]
                    asyncio.get_running_loop().remove_reader(listener.fileno())
            # Let connections that were just accepted be set up, to be closed like all others.
            for _ in range(8):
                await asyncio.sleep(0)
            for site in list(self._runner.sites):
                await site.stop()
            self._faults.cut()
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(AS):
            token, _, rest = request.raw_path.removeprefix(AS).partition("/")
            headers = {**request.headers, "Authorization": f"Bearer {token}"}
            request = request.clone(rel_url=f"/{rest}", headers=headers)
        try:
            user = self._access.user(request.headers.get("Authorization", ""))
            self.requests.append((request.method, request.path_qs))
            self._faults.meet(request.method, request.path)
            async with self._faults.around(user, request.method, request.path):
                return await self._answer(request, user)
        except Refusal as refusal:
            return web.json_response(refusal.status(), status=refusal.code, headers=refusal.headers)
        except ConnectionError:
            # The client disconnected during a stream.
            return web.Response()
        except Exception as error:
            return web.json_response(Refusal(500, f"emulator: {error!r}").status(), status=500)

    async def _answer(self, request: web.Request, user: str) -> web.StreamResponse:
        if request.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        if request.method == "GET" and (document := discovery.answer(request.path, self.resources)):
            return web.json_response(document)
        if request.path.endswith("/" + discovery.REVIEWS.plural):
            return await self._review(request, user)
        if request.path.endswith("/" + discovery.WHO.plural):
            return web.json_response({"status": {"userInfo": {"username": user}}}, status=201)
        call = await self._read(request, user)
        if call is None:
            return web.Response(status=404, text=PLAIN_404)
        return await self._handle(call)

    async def _review(self, request: web.Request, user: str) -> web.StreamResponse:
        body = await request.json()
        attributes = body["spec"].get("resourceAttributes", {})
        plural = "/".join(filter(None, (attributes.get("resource", ""), attributes.get("subresource", ""))))
        attempt = Attempt(
            attributes.get("verb", ""),
            attributes.get("group", ""),
            plural,
            attributes.get("namespace", ""),
            attributes.get("name", ""),
        )
        allowed = self._access.allows(user, attempt)
        return web.json_response(body | {"metadata": {}, "status": {"allowed": allowed}}, status=201)

    async def _read(self, request: web.Request, user: str) -> Call | None:
        """Read path, query and body; return None for an unknown path that the user may access."""
        query = {key: request.query[key] for key in request.query}
        call = self.call(user, request.method, request.path, query, request.headers)
        return call and replace(call, body=await _body(request), request=request)

    def call(
        self, user: str, method: str, path: str, query: dict[str, str], headers: Mapping[str, str]
    ) -> Call | None:
        """Return the call of a request without its body; None for an unknown path."""
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        version = "/".join(parts[1:2] if parts[0] == "api" else parts[1:3])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces":
            _, namespace, *rest = rest
            if rest[0] == "status":
                namespace, rest = "", ["namespaces", namespace, *rest]
        if not 0 < len(rest) <= 3:
            return None
        plural, name, subresource = [*rest, "", ""][:3]
        group, _, number = version.rpartition("/")
        resource = self.resource(version, plural) or Resource(group, number, plural, "")
        verb = _verb(method, name, query)
        whole = f"{plural}/{subresource}" if subresource else plural
        self._access.check(user, resource, Attempt(verb, group, whole, namespace, name))
        if not resource.kind or (subresource and subresource not in resource.subresources):
            return None
        return Call(verb, resource, namespace, name, subresource, query, {}, user, headers)


def _verb(method: str, name: str, query: dict[str, str]) -> str:
    if method == "GET":
        watching = query.get("watch", "") in ("1", "true", "True")
        return "watch" if watching else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")


async def _body(request: web.Request) -> Object:
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refusal(413, f"Request entity too large: limit is {BODY_LIMIT}") from error
    if not data:
        return {}
    kind = request.content_type
    if request.method == "POST" and kind not in ("application/json", "application/octet-stream"):
        raise Refusal(
            415,
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    try:
        body: Object = json.loads(data)
    except ValueError as error:
        raise Refusal(400, f"couldn't get version/kind; json parse error: {error}") from error
    return body
