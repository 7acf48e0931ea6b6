"""The API as controllers use it: plain objects, over HTTP or in the API server's own process."""

import json
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import aiohttp

from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import now

Query = Mapping[str, str]
NO_QUERY: Query = {}


class ApiError(Exception):
    """An answer other than 2xx."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def collection(api_version: str, plural: str, namespace: str = "") -> str:
    """Return the path of a resource, in one namespace or in all."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def content_type(method: str) -> str:
    """Return the type of a request's body."""
    return "application/merge-patch+json" if method == "PATCH" else "application/json"


class Client(ABC):
    """A controller's client of one API server."""

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    async def request(self, method: str, path: str, body: Any = None, query: Query = NO_QUERY) -> Object:
        """Send a request and return the answer; a PATCH merges. Raises ApiError for a refusal."""

    @abstractmethod
    def changes(self, path: str) -> AsyncIterator[Object]:
        """Yield each object, and again after each of its changes, until the watch ends."""

    async def get(self, path: str) -> Object | None:
        """Return the object, or None if it doesn't exist."""
        try:
            return await self.request("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, path: str, labels: str = "") -> list[Object]:
        """Return the objects with these labels; none if the cluster doesn't serve the resource."""
        try:
            listing = await self.request("GET", path, query={"labelSelector": labels} if labels else {})
        except ApiError as error:
            if error.code == 404:
                return []
            raise
        kind = {"apiVersion": listing["apiVersion"], "kind": listing["kind"].removesuffix("List")}
        return [kind | item for item in listing["items"]]

    async def create(self, path: str, body: Object) -> Object:
        """Create an object."""
        return await self.request("POST", path, body)

    async def ensure(self, path: str, body: Object) -> None:
        """Create an object unless it exists."""
        try:
            await self.create(path, body)
        except ApiError as error:
            if error.code != 409:
                raise

    async def patch(self, path: str, body: Object) -> Object:
        """Merge into an object."""
        return await self.request("PATCH", path, body)

    async def write_status(self, path: str, obj: Object, status: Object) -> Object:
        """Replace an object's status, if nobody has written the object since it was read."""
        return await self.request("PUT", f"{path}/status", obj | {"status": status})

    async def delete(self, path: str, policy: str = "Background") -> None:
        """Delete an object, if it still exists."""
        try:
            await self.request("DELETE", path, {"propagationPolicy": policy})
        except ApiError as error:
            if error.code != 404:
                raise

    async def tell(
        self, obj: Object, component: str, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Write a core event about an object."""
        meta = obj["metadata"]
        involved = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "uid": meta["uid"]}
        name = f"{meta['name']}.{time.time_ns():x}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": involved | {"namespace": meta["namespace"], "name": meta["name"]},
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
            "type": "Warning" if warning else "Normal",
        }
        await self.create(collection("v1", "events", meta["namespace"]), event)


class HttpClient(Client):
    """A session with an API server, the emulator's or a real one."""

    def __init__(self, url: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._url, self._token = url.rstrip("/"), token
        self._context: ssl.SSLContext | bool = context or True
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(self, method: str, path: str, body: Any = None, query: Query = NO_QUERY) -> Object:
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type(method)}
        request = self._session.request(
            method, self._url + path, data=data, headers=headers, params=query, ssl=self._context
        )
        async with request as response:
            text = await response.text()
            answer: Object = json.loads(text) if text.startswith("{") else {"message": text}
            if response.status >= 400:
                raise ApiError(response.status, answer.get("message", ""))
            return answer

    async def changes(self, path: str) -> AsyncIterator[Object]:
        assert self._session is not None
        listing = await self.request("GET", path)
        kind = {"apiVersion": listing["apiVersion"], "kind": listing["kind"].removesuffix("List")}
        for item in listing["items"]:
            yield kind | item
        params = {
            "watch": "1",
            "resourceVersion": listing["metadata"]["resourceVersion"],
            "timeoutSeconds": "300",
        }
        request = self._session.get(self._url + path, params=params, ssl=self._context)
        async with request as response:
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    yield event["object"]
