"""A kernel asks a cluster again for what it serves: operators may be installed while the kernel runs."""

from types import SimpleNamespace

from nbtorchjob.backends.kubernetes import session as asked
from nbtorchjob.backends.kubernetes.control.tending import Tender
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.machine import loop
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.stage import until


def here():
    return loop.run(asked.session(None))


def kinds(session):
    return [kind.name for kind in loop.run(session.kinds())]


def test_an_operator_that_is_installed_while_a_kernel_runs_is_known_within_a_minute(crds, monkeypatch):
    now = 0.0
    monkeypatch.setattr(asked, "time", SimpleNamespace(monotonic=lambda: now))
    with Emulator(kinds=["indexedjob"]) as bare, Emulator() as whole:
        monkeypatch.setenv("KUBECONFIG", str(whole.kubeconfig))
        installed = here()
        assert kinds(installed) == [*KINDS]
        monkeypatch.setenv("KUBECONFIG", str(bare.kubeconfig))
        session = here()
        assert kinds(session) == ["indexedjob"]
        tender = Tender(session, Scope("", "default"), everyone=True)
        tending = loop.start(tender.run())
        until(lambda: tender.listed)
        assert not loop.run(tender.outdated())
        session.client = installed.client  # stands in for the installation of the operators
        now += 50
        assert kinds(session) == ["indexedjob"]
        now += 20
        assert kinds(session) == [*KINDS]
        assert loop.run(tender.outdated())  # its owner then starts another tender
        tending.cancel()


def test_a_runtime_that_may_not_be_read_is_one_of_the_namespace_unless_all_namespaces_have_it(stage):
    def kind(name):
        runtimes = KINDS["trainjob"].runtimes
        assert runtimes is not None
        return loop.run(attempts.find(here().client, runtimes, stage.namespace, name)).kind

    stage.cluster.trouble(403, "/trainingruntimes/", times=2)

    assert kind("torch-distributed") == "ClusterTrainingRuntime"
    assert kind("mine") == "TrainingRuntime"
