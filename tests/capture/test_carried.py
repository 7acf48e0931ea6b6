"""Settings of the notebook's process hold on its ranks as in the notebook."""

import decimal
import locale
import multiprocessing
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from nbtorchjob.capture import from_cell
from nbtorchjob.runtime.rank import carried

# The code that changes each setting in a notebook.
SET = {
    "warnings.filterwarnings": "import warnings; warnings.filterwarnings('error', 'so', UserWarning)",
    "locale.setlocale": "import locale; locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')",
    "sys.setrecursionlimit": "import sys; sys.setrecursionlimit(4321)",
    "decimal.setcontext": "import decimal; decimal.getcontext().prec = 5",
    "multiprocessing.set_start_method": (
        "import multiprocessing; multiprocessing.set_start_method('spawn', force=True)"
    ),
    "numpy.seterr": "import numpy; numpy.seterr(divide='raise')",
    "numpy.set_printoptions": "import numpy; numpy.set_printoptions(precision=2)",
    "torch.set_printoptions": "import torch; torch.set_printoptions(precision=2)",
    "matplotlib.rcParams": "import matplotlib; matplotlib.rcParams['font.size'] = 7",
    "pandas.set_option": "import pandas; pandas.set_option('display.max_rows', 7)",
}
# The code that resets each setting there.
UNSET = {
    "warnings.filterwarnings": "import warnings; warnings.resetwarnings()",
    "locale.setlocale": "import locale; locale.setlocale(locale.LC_NUMERIC, 'C')",
    "sys.setrecursionlimit": "import sys; sys.setrecursionlimit(1000)",
    "decimal.setcontext": "import decimal; decimal.getcontext().prec = 28",
    "multiprocessing.set_start_method": (
        "import multiprocessing; multiprocessing.set_start_method(None, force=True)"
    ),
    "numpy.seterr": "import numpy; numpy.seterr(divide='warn')",
    "numpy.set_printoptions": "import numpy; numpy.set_printoptions(precision=8)",
    "torch.set_printoptions": "import torch; torch.set_printoptions(precision=4)",
    "matplotlib.rcParams": (
        "import matplotlib; matplotlib.rcParams['font.size'] = matplotlib.rcParamsOrig['font.size']"
    ),
    "pandas.set_option": "import pandas; pandas.reset_option('display.max_rows')",
}


FILTERS = carried.SETTINGS["warnings.filterwarnings"]  # tests take it out, since pytest sets filters


@pytest.fixture
def filters():
    """Reset the warning filters to a fresh process's and carry them, unlike in other tests."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setitem(carried.SETTINGS, "warnings.filterwarnings", FILTERS)
        warnings.resetwarnings()
        yield


@pytest.fixture
def process(filters):
    """Restore this process's settings."""
    limit, context = sys.getrecursionlimit(), decimal.getcontext().copy()
    method, errors = multiprocessing.get_start_method(allow_none=True), np.geterr()
    yield
    sys.setrecursionlimit(limit)
    decimal.setcontext(context)
    multiprocessing.set_start_method(method, force=True)
    np.seterr(**errors)
    locale.setlocale(locale.LC_NUMERIC, "C")
    np.set_printoptions(precision=8)
    torch.set_printoptions(profile="default")
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].rcParams.update(sys.modules["matplotlib"].rcParamsOrig)
    if "pandas" in sys.modules:
        sys.modules["pandas"].reset_option("display.max_rows")


def test_a_fresh_process_has_nothing_to_carry(filters, ranks):
    imports = "import decimal, multiprocessing, numpy, torch\nfrom nbtorchjob.runtime.rank import carried"
    text = f"{imports}\ncarried.changed()"
    assert ranks.run(from_cell(text, {"__name__": "__main__"}))[0] == {}
    assert carried.changed() == {}


def test_a_start_method_that_nobody_chose_isnt_carried(process):
    multiprocessing.set_start_method(None, force=True)
    assert multiprocessing.get_context().get_start_method() == multiprocessing.get_start_method()
    assert multiprocessing.get_start_method(allow_none=True) is not None
    assert carried.changed() == {}


@pytest.mark.parametrize("name", SET)
def test_what_the_notebook_sets_is_so_on_ranks(name, process, ranks):
    home = carried.SETTINGS[name].module
    pytest.importorskip(home)
    exec(SET[name])
    here = carried.changed()
    text = f"import {home}\nfrom nbtorchjob.runtime.rank import carried\ncarried.changed()"
    value, _, error = ranks.run(from_cell(text, {"__name__": "__main__"}))

    assert error == ""
    assert list(here) == [name]
    assert value == here


@pytest.mark.parametrize("name", SET)
def test_settings_are_read_and_laid_without_a_warning(name, process):
    home = pytest.importorskip(carried.SETTINGS[name].module)
    exec(SET[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = carried.SETTINGS[name].read(home)
        carried.SETTINGS[name].set(home, here)
        assert here != carried.SETTINGS[name].default(home)


def test_each_setting_is_tried():
    assert SET.keys() == UNSET.keys() == {*carried.SETTINGS, "warnings.filterwarnings"}


def test_a_filter_of_a_librarys_warning_holds_once_that_is_imported(process, ranks):
    warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
    text = "import warnings, numpy\n[entry[2].__name__ for entry in warnings.filters if entry[0] == 'ignore']"
    value, _, error = ranks.run(from_cell(text, {"__name__": "__main__"}))
    assert error == ""
    assert "VisibleDeprecationWarning" in value


def test_filters_of_an_earlier_turn_are_taken_back(process):
    warnings.simplefilter("error", UserWarning)
    values = carried.changed()
    warnings.resetwarnings()
    carried.lay(values)
    assert warnings.filters[0][:3] == ("error", None, UserWarning)
    carried.lay({})
    assert carried.changed() == {}


@pytest.mark.parametrize("name", SET)
def test_what_isnt_set_any_more_is_as_before(name, process):
    pytest.importorskip(carried.SETTINGS[name].module)
    exec(SET[name])
    values = carried.changed()
    exec(UNSET[name])
    assert carried.changed() == {}
    for _ in range(2):
        carried.lay(values)
        assert carried.changed() == values
        carried.lay({})
        assert carried.changed() == {}


def test_of_options_what_isnt_set_any_more_is_as_before_and_what_ranks_set_stays(process):
    pandas = pytest.importorskip("pandas")
    carried.lay({"pandas.set_option": {"display.max_rows": 7, "display.precision": 2}})
    pandas.set_option("display.width", 60)
    carried.lay({"pandas.set_option": {"display.max_rows": 9}})
    shown = [pandas.get_option(f"display.{name}") for name in ("max_rows", "precision", "width")]
    carried.lay({})
    pandas.reset_option("display.width")
    assert shown == [9, 6, 60]


def test_a_filter_that_ranks_set_themselves_stays(process):
    warnings.simplefilter("error", UserWarning)
    values = carried.changed()
    warnings.resetwarnings()
    warnings.simplefilter("always", FutureWarning)
    turns: list[dict[str, Any]] = [{}, values] * 2
    for turn in turns:
        carried.lay(turn)
        assert ("always", None, FutureWarning, None, 0) in warnings.filters
    carried.lay({})


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"matplotlib.rcParams": {"font.size": 7}}, "rcParams['font.size'] == 7"),
        (
            {
                "warnings.filterwarnings": [
                    ("error", "matplotlib._api.deprecation.MatplotlibDeprecationWarning", "", "", 0)
                ]
            },
            "_api.MatplotlibDeprecationWarning in [entry[2] for entry in warnings.filters]",
        ),
    ],
)
def test_what_isnt_set_any_more_isnt_set_once_its_module_is_imported(values, shown, ranks):
    pytest.importorskip("matplotlib")
    imports = "import warnings\nfrom nbtorchjob.runtime.rank import carried\n"
    lay, back = f"carried.lay({values})\n", "carried.lay({})\n"
    for turns, is_so in ((lay, True), (lay + back, False), (lay + back + lay, True)):
        cell = from_cell(f"{imports}{turns}import matplotlib\nmatplotlib.{shown}", {})
        assert ranks.run(cell)[0] is is_so
