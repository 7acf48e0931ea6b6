"""Run the controllers on a cluster that has no operators, with `python -m` on this package."""

import argparse
import asyncio
import ssl

from kubernetes import client, config

from tests.backends.kubernetes.cluster.controllers import CONTROLLERS, run_controllers
from tests.backends.kubernetes.cluster.controllers.client import Client, HttpClient
from tests.backends.kubernetes.cluster.resources import Object

# Volcano's installer adds this beside the Job: in Volcano, cancel, suspend and resume are Commands.
COMMANDS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "commands.bus.volcano.sh"},
    "spec": {
        "group": "bus.volcano.sh",
        "names": {"kind": "Command", "listKind": "CommandList", "plural": "commands", "singular": "command"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


def connect(kubeconfig: str | None) -> Client:
    """Return a client for the current context of a kubeconfig."""
    settings = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=settings)
    context = None
    if settings.host.startswith("https"):
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    token = settings.api_key.get("authorization", "").removeprefix("Bearer ")
    return HttpClient(settings.host, token, context)


async def install(client: Client) -> None:
    """Create the definitions that an operator's installer would add."""
    async with client:
        await client.ensure("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", COMMANDS)


def main() -> None:
    """Run until interrupted."""
    # Kubernetes before 1.24 has no Indexed Job: there TrainJobs need more than these controllers.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--kinds", nargs="+", choices=sorted(CONTROLLERS), default=["pytorchjob", "volcano"])
    parser.add_argument(
        "--scheduler", default="default-scheduler", help="who schedules the pods of Volcano Jobs"
    )
    arguments = parser.parse_args()
    if "volcano" in arguments.kinds:
        asyncio.run(install(connect(arguments.kubeconfig)))
    asyncio.run(
        run_controllers(connect(arguments.kubeconfig), arguments.kinds, scheduler=arguments.scheduler)
    )


main()
