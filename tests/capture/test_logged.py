"""The notebook's setup of ``logging`` holds on ranks."""

import io
import logging
import logging.handlers
import sys

import pytest
from _pytest import logging as _pytest_logging
from traitlets.config import application as traitlets_log

from nbtorchjob.capture import from_cell
from nbtorchjob.runtime.rank import carried


@pytest.fixture
def notebook(monkeypatch):
    """Yield a notebook's namespace with ``logging``, which is as Python starts it."""
    root = logging.root
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.setattr(root.manager, "loggerDict", {})
    monkeypatch.setattr(root.manager, "disable", 0)
    yield {"__name__": "__main__", "logging": logging}
    logging.captureWarnings(False)
    root.manager._clear_cache()  # type: ignore[attr-defined] # the cached levels of the loggers that stay


def printed(ranks, text, namespace):
    call = from_cell(text, namespace)
    value, out, error = ranks.run(call)
    assert error == ""
    return value, out, call.notes


def test_levels_and_formats_of_a_notebook_hold(notebook, ranks):
    logging.basicConfig(
        force=True, level=logging.INFO, stream=sys.stdout, format="%(levelname)s:%(name)s:%(message)s"
    )
    logging.getLogger("train").setLevel(logging.DEBUG)
    logging.getLogger("loud").setLevel(logging.ERROR)
    text = (
        "for name in ('train', 'loud', 'other'):\n    for level in (10, 20, 40):\n"
        "        logging.getLogger(name).log(level, 'x')"
    )
    _, out, notes = printed(ranks, text, notebook)

    lines = [
        "DEBUG:train:x",
        "INFO:train:x",
        "ERROR:train:x",
        "ERROR:loud:x",
        "INFO:other:x",
        "ERROR:other:x",
    ]
    assert out.splitlines() == lines
    assert notes == ()


def test_handlers_filters_and_loggers_of_a_notebook_hold(notebook, ranks):
    exec(
        "import sys\n"
        "class Upper(logging.Formatter):\n"
        "    def format(self, record): return super().format(record).upper()\n"
        "class Own(logging.StreamHandler):\n    def emit(self, record): print('own', self.format(record))\n"
        "class Kept(logging.Handler):\n    lines = []\n"
        "    def emit(self, record): self.lines.append(record.msg)\n"
        "class Only(logging.Filter):\n    def filter(self, record): return 'no' not in record.msg\n"
        "log = logging.getLogger('mine')\nlog.propagate = False\n"
        "for handler in (logging.StreamHandler(sys.stdout), Own(sys.stdout), Kept()):\n"
        "    handler.setFormatter(Upper('%(message)s'))\n    log.addHandler(handler)\n"
        "log.addFilter(Only())\n",
        notebook,
    )
    value, out, notes = printed(
        ranks, "log.warning('no')\nlog.warning('yes')\nlog.handlers[2].lines", notebook
    )

    assert (value, out, notes) == (["yes"], "YES\nown YES\n", ())


def test_a_fresh_process_with_torch_has_nothing_to_carry(notebook, ranks):
    text = "import torch.distributed\nfrom nbtorchjob.runtime.rank import carried\ncarried.changed_logging()"
    assert printed(ranks, text, notebook)[0] == ({}, [])


def test_levels_of_libraries_hold(notebook, ranks):
    for name in ("torch.distributed", "json.tool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    text = "[logging.getLogger(name).level for name in ('torch.distributed', 'json.tool')]"
    assert printed(ranks, text, notebook)[0] == [logging.ERROR, logging.ERROR]


def test_what_is_disabled_and_captured_in_a_notebook_is_so_on_ranks(notebook, ranks):
    logging.basicConfig(force=True, stream=sys.stdout, format="%(name)s")
    logging.captureWarnings(True)
    text = "import warnings\nwarnings.warn('x')\nlogging.disable(40)\nlogging.error('x')"
    assert printed(ranks, text, notebook)[1] == "py.warnings\n"
    logging.disable(logging.WARNING)
    assert printed(ranks, text, notebook)[1] == ""


def test_a_handler_that_writes_elsewhere_stays_and_is_named(notebook, ranks, tmp_path):
    file = logging.FileHandler(tmp_path / "log")
    memory, stdout = logging.StreamHandler(io.StringIO()), logging.StreamHandler(sys.stdout)
    logging.basicConfig(force=True, handlers=[file, memory, stdout], format="%(message)s")
    _, out, notes = printed(ranks, "logging.warning('x')", notebook)

    stays = "stays here: on ranks nothing is written to it"
    assert (out, notes) == ("x\n", (f"logging's FileHandler {stays}", f"logging's StreamHandler {stays}"))
    assert from_cell("1", notebook).notes == (), "as it logs nothing"
    file.close()


def test_a_handler_that_draws_in_a_terminal_writes_its_text(notebook, ranks):
    rich = pytest.importorskip("rich.logging")
    logging.basicConfig(force=True, handlers=[rich.RichHandler()], format="drawn %(message)s", level="INFO")
    text = "import sys\nlogging.root.handlers[0].setStream(sys.stdout)\nlogging.info('x')"
    assert printed(ranks, text, notebook) == (None, "drawn x\n", ())


def test_a_librarys_formatter_or_filter_asks_nothing_of_the_image(notebook, ranks):
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(traitlets_log.LevelFormatter("%(highlevel)s%(message)s"))
    handler.addFilter(_pytest_logging.LogCaptureHandler())
    logging.getLogger("train").addHandler(handler)
    call = from_cell("logging.getLogger('train').error('kept')", notebook)

    assert {need.module.partition(".")[0] for need in call.needs} <= {"torch"}
    _, out, error = ranks.run(call)
    assert (out.strip(), error) == ("kept", "")


def test_what_a_notebook_takes_back_is_as_before(notebook):
    root, net, quiet = logging.root, logging.getLogger("net"), logging.getLogger("quiet")
    handler = logging.StreamHandler(sys.stdout)

    def state():
        loggers = [
            (
                logger.level,
                logger.propagate,
                logger.disabled,
                [*logger.filters],
                [*map(type, logger.handlers)],
            )
            for logger in (net, quiet)
        ]
        captures = logging._warnings_showwarning is not None  # type: ignore[attr-defined]
        return root.manager.disable, captures, loggers

    def change(handlers, filters, *, on):
        logging.disable(logging.INFO if on else 0)
        logging.captureWarnings(on)
        net.propagate, quiet.disabled = not on, on
        net.filters[:], net.handlers[:] = filters, handlers
        quiet.setLevel(logging.ERROR if on else logging.NOTSET)

    before = state()
    change([handler], [lambda record: False], on=True)
    set_up, setup = state(), carried.changed_logging()[0]
    change([], [], on=False)
    assert state() == before
    for _ in range(2):
        carried.lay_logging(setup)
        assert state() == set_up
        carried.lay_logging({})
        assert state() == before


def test_what_ranks_set_themselves_is_there_again_once_a_notebook_takes_its_own_back(notebook):
    net, logging.root.manager.disable = logging.getLogger("net"), logging.DEBUG
    net.setLevel(logging.ERROR)
    net.addFilter(lambda record: True)
    before = net.level, [*net.filters], logging.root.manager.disable
    setup = carried.LoggerSetup(logging.INFO, False, False, [], [], "")
    carried.lay_logging({"loggers": {"net": setup}, "disable": 0, "warnings": False})
    assert (net.level, net.filters, net.propagate) == (logging.INFO, [], False)
    carried.lay_logging({})
    assert (net.level, net.filters, logging.root.manager.disable) == before
    assert net.propagate
