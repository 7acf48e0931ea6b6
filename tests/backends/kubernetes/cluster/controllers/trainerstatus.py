"""Kubeflow Trainer's server for the progress that a TrainJob's pods report (2.3, gate `TrainJobStatus`)."""

import json
import ssl
import subprocess
from pathlib import Path

from aiohttp import web

from tests.backends.kubernetes.cluster import podtokens
from tests.backends.kubernetes.cluster.controllers.client import ApiError, Client
from tests.backends.kubernetes.cluster.resources import Object

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status"
MOUNT, VOLUME = "/var/run/secrets/kubeflow/trainer", "kubeflow-trainer-token"
LIFETIME_S = 3600
BODY_LIMIT = 1 << 16
FIELDS = ("progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime")


class StatusServer:
    """A TLS server that writes what a pod posts into the status of its TrainJob."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self.url = client, ""
        key, certificate = folder / "trainer.pem", folder / "trainer.crt"
        # The certificate has a name, as an address of this machine's network would be taken for a pod's.
        words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=trainer"
        arguments = [*words.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key)]
        subprocess.run([*arguments, "-out", str(certificate)], check=True, capture_output=True)
        self.authority = certificate.read_text()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)

    async def start(self) -> None:
        """Begin to listen."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post(PATH, self._post)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"https://localhost:{port}"

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    def tell(self, job: Object, pod: Object, container: Object) -> Object:
        """Add the server's address and a token to a job's pods; return the ConfigMap that they need."""
        space, name = job["metadata"]["namespace"], job["metadata"]["name"]
        env = {"URL": self.url + _path(space, name), "CA_CERT": f"{MOUNT}/ca.crt", "TOKEN": f"{MOUNT}/token"}
        variables = [{"name": f"KUBEFLOW_TRAINER_SERVER_{key}", "value": value} for key, value in env.items()]
        container["env"] = [*(container.get("env") or ()), *variables]
        mount = {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        token = {"audience": _path(space, name), "expirationSeconds": LIFETIME_S, "path": "token"}
        authority = {"name": f"{name}-tls-config", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        sources = [{"serviceAccountToken": token}, {"configMap": authority}]
        pod["volumes"] = [*(pod.get("volumes") or ()), {"name": VOLUME, "projected": {"sources": sources}}]
        meta = {"name": authority["name"], "namespace": space}
        data = {"ca.crt": self.authority}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}

    async def _post(self, request: web.Request) -> web.Response:
        space, name = request.match_info["namespace"], request.match_info["name"]
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        claims = podtokens.claims(token) if kind == "Bearer" else {}
        where = claims.get("kubernetes.io", {}).get("namespace")
        if where != space or _path(space, name) not in claims["aud"]:
            return _refused(403, "Forbidden", "Forbidden")
        try:
            payload = json.loads(await request.read())
        except ValueError:
            return _refused(422, "Invalid", "Invalid payload")
        report = payload.get("trainerStatus")
        if report:
            try:
                # The report is applied: fields that it no longer has are removed.
                status = {"trainerStatus": dict.fromkeys(FIELDS) | report}
                await self._client.patch(f"{_path(space, name)}", {"status": status})
            except ApiError as error:
                reasons = {
                    404: (404, "NotFound", "Train job not found"),
                    422: (422, "Invalid", error.message),
                }
                return _refused(*reasons.get(error.code, (500, "InternalError", "Internal error")))
        return web.json_response(payload)


def _path(namespace: str, name: str) -> str:
    return PATH.format(namespace=namespace, name=name)


def _refused(code: int, reason: str, message: str) -> web.Response:
    body = {"status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(body, status=code)
