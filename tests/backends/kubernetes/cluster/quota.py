"""ResourceQuotas: pods, counts of objects, and the requests and limits of containers."""

from decimal import Decimal

from tests.backends.kubernetes.cluster.refusals import forbidden
from tests.backends.kubernetes.cluster.resources import PODS, QUOTAS, Object, Resource
from tests.backends.kubernetes.cluster.store import Store

UNITS = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}
COMPUTE = ("cpu", "memory", "nvidia.com/gpu")


def quantity(text: str | int | float) -> Decimal:
    """Parse a quantity: `500m`, `2Gi`, `3`."""
    amount = str(text)
    unit = amount.lstrip("+-0123456789.")
    return Decimal(amount.removesuffix(unit)) * UNITS.get(unit, Decimal(1))


def check_quota(store: Store, resource: Resource, obj: Object) -> None:
    """Refuse an object that exceeds a quota of its namespace."""
    space, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    for quota in store.list(QUOTAS, space) if space else ():
        title, hard = quota["metadata"]["name"], quota["spec"].get("hard", {})
        for counted, limit in hard.items():
            request = _use(resource, obj, counted)
            if request is None:
                continue
            if request == "missing":
                which = ",".join(container["name"] for container in obj["spec"]["containers"])
                raise forbidden(resource, name, f"failed quota: {title}: must specify {counted} for: {which}")
            used = sum(quantity(_use(resource, obj, counted) or 0) for obj in _living(store, resource, space))
            if used + quantity(request) > quantity(limit):
                why = f"requested: {counted}={request}, used: {counted}={used}, limited: {counted}={limit}"
                raise forbidden(resource, name, f"exceeded quota: {title}, {why}")


def _living(store: Store, resource: Resource, space: str) -> list[Object]:
    ended = ("Succeeded", "Failed")
    objects = store.list(resource, space)
    return [obj for obj in objects if resource != PODS or obj["status"].get("phase") not in ended]


def _use(resource: Resource, obj: Object, counted: str) -> str | None:
    """Return the object's use of a counted resource: None for no use, "missing" if it must state one."""
    if counted == f"count/{resource.qualified}" or (counted == "pods" and resource == PODS):
        return "1"
    kind, _, name = counted.rpartition("requests." if counted.startswith("requests.") else "limits.")
    if resource != PODS or name not in COMPUTE or kind:
        return None
    side = counted.partition(".")[0]
    amounts = [
        container.get("resources", {}).get(side, {}).get(name) for container in obj["spec"]["containers"]
    ]
    if any(amount is None for amount in amounts):
        return "missing" if name != "nvidia.com/gpu" else None
    return str(sum(quantity(amount) for amount in amounts))
