"""A node reads what it uses from the kernel's files and NVML, and reports it rarely."""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import threading
from subprocess import PIPE

import pytest

from nbtorchjob.runtime.facts import EVENTS
from nbtorchjob.runtime.node import meter as nvml
from nbtorchjob.runtime.node.meter import Gpus, Memory, Meter, Roots, cores, cpu, rank_use
from nbtorchjob.runtime.node.processes import alive
from tests.backends.kubernetes.stage import until

GB = 1_000_000_000
MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\n"


@pytest.fixture
def roots(folder):
    """Return the roots of a machine of 16 GB, 4 of them used, without cgroups."""
    write(folder / "proc/meminfo", MEMINFO)
    (folder / "cgroup").mkdir()
    return Roots(str(folder / "proc"), str(folder / "cgroup"), str(folder))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text))


def group(folder, limit, used, inactive=0):
    write(folder / "memory.max", limit)
    write(folder / "memory.current", used)
    write(folder / "memory.stat", f"anon 1\ninactive_file {inactive}\nactive_file 2\n")


def test_without_a_limit_it_is_the_machines_memory(roots):
    assert Memory(roots).read() == (4_000_000 * 1024, 16_000_000 * 1024)


def test_of_nested_cgroups_the_one_counts_that_is_full_first(roots, folder):
    write(folder / "proc/self/cgroup", "0::/kubepods/pod\n")
    group(folder / "cgroup/kubepods", 4 * GB, 3 * GB)
    group(folder / "cgroup/kubepods/pod", 2 * GB, GB + 5, inactive=5)
    memory = Memory(roots)

    assert memory.read() == (GB, 2 * GB)  # the same room as in its parent: the inner group counts
    group(folder / "cgroup/kubepods", 4 * GB, 3 * GB + 1)
    assert memory.read() == (3 * GB + 1, 4 * GB)


def test_a_group_without_a_limit_and_a_path_of_the_host_are_passed_over(roots, folder):
    write(folder / "proc/self/cgroup", "0::/../../elsewhere\n")
    group(folder / "cgroup", "max", GB)
    assert Memory(roots).read()[1] == 16_000_000 * 1024

    group(folder / "cgroup", GB, 5)
    assert Memory(roots).read() == (5, GB)


def test_version_1_is_read_as_well(roots, folder):
    write(folder / "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/b\n")
    write(folder / "cgroup/memory/a/memory.limit_in_bytes", GB)
    write(folder / "cgroup/memory/a/memory.usage_in_bytes", 700)
    write(folder / "cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n")
    write(folder / "cgroup/memory/memory.limit_in_bytes", 9223372036854771712)  # the value for no limit
    write(folder / "cgroup/cpu/a/cpu.cfs_quota_us", 50_000)
    write(folder / "cgroup/cpu/a/cpu.cfs_period_us", 100_000)

    assert Memory(roots).read() == (500, GB)
    assert cores(roots) == 0.5


def test_a_quota_counts_as_cores(roots, folder):
    assert cores(roots) == len(os.sched_getaffinity(0))
    write(folder / "cgroup/cpu.max", "25000 100000")
    assert cores(roots) == 0.25
    write(folder / "cgroup/cpu.max", "max 100000")
    assert cores(roots) == len(os.sched_getaffinity(0))


def test_the_model_of_the_cpu_is_told_where_the_kernel_tells_it(roots, folder):
    assert cpu(roots) == ""
    write(
        folder / "proc/cpuinfo",
        "processor\t: 0\nmodel\t: 17\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\n",
    )
    assert cpu(roots) == "AMD EPYC 9654"


def test_a_process_is_measured():
    last_ticks: dict[str, int] = {}
    use = rank_use(3, f"/proc/{os.getpid()}", last_ticks, 0.0)
    again = rank_use(3, f"/proc/{os.getpid()}", last_ticks, 60.0)

    assert (use.rank, again.worked) == (3, 0)
    assert 1 <= use.worked <= use.tasks
    assert str(threading.get_native_id()) in last_ticks
    assert use.cpu > 0
    assert use.resident > 10_000_000
    assert use.tasks >= use.running >= 1


class Watch:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def told(folder, monkeypatch):
    monkeypatch.setenv(EVENTS, str(folder / "events.jsonl"))

    def read():
        path = folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def meter(roots, folder):
    stat = "7 (a b) c) S " + " ".join(map(str, range(60)))
    write(folder / "proc/7/stat", stat)
    write(folder / "proc/7/task/7/stat", stat)
    write(folder / "proc/7/task/8/stat", stat.replace(") S", ") R"))
    watch = Watch()
    meter = Meter(2, roots, watch, library=lambda: None)
    meter.begin(5, {4: 7})

    def at(seconds):
        watch.now = seconds
        meter.look()

    return at


def test_a_short_job_tells_nothing_and_a_long_one_now_and_then(meter, told):
    for second in range(1, 5):
        meter(second)
    assert told() == []
    for second in range(5, 31):
        meter(second)

    assert [(record["seq"], record["node"], record["round"]) for record in told()] == [
        (0, 2, 5),
        (1, 2, 5),
        (2, 2, 5),
    ]
    [use] = told()[0]["uses"]
    assert (use["rank"], use["running"], use["tasks"]) == (4, 1, 16)
    assert [told()[at]["uses"][0]["worked"] for at in (0, 1)] == [2, 0]  # the CPU time stands still
    assert told()[0]["memory"] == 4_000_000 * 1024


def test_memory_that_rises_fast_is_told_at_once(meter, told, folder):
    meter(1)
    write(folder / "proc/meminfo", MEMINFO.replace("12000000", "11000000"))
    meter(2)
    meter(3)
    assert [record["memory"] for record in told()] == [5_000_000 * 1024]
    write(folder / "proc/meminfo", MEMINFO.replace("12000000", "3000000"))
    meter(4)
    write(folder / "proc/meminfo", MEMINFO.replace("12000000", "2800000"))  # a small rise, but nearly full
    meter(5)

    assert [record["seq"] for record in told()] == [0, 1, 2]


def test_when_its_ranks_have_ended_nothing_is_told(meter, told, folder):
    (folder / "proc/7/stat").unlink()
    meter(20)
    (folder / "proc/meminfo").write_text("garbage")
    meter(40)

    assert told() == []


class StandIn:
    """A stub of NVML's functions, as ctypes calls them: two GPUs, of which the second can't be read."""

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.value = 100 + index.value
        return 0

    def nvmlDeviceGetUtilizationRates(self, device, use):
        use._obj.gpu = 40
        return 0 if device.value == 100 else 3

    def nvmlDeviceGetMemoryInfo(self, device, memory):
        memory._obj.total, memory._obj.used = 80 * GB, 30 * GB
        return 0

    def nvmlDeviceGetName(self, device, name, size):
        name.value = b"NVIDIA H100"
        return 0


SOURCE = """
#include <string.h>
#define AT(device) ((char *)(device) - (char *)0)
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = (char *)0 + 100 + index; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *use)
{ use[0] = 40; return AT(device) == 100 ? 0 : 3; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{ memory[0] = 80000000000ull; memory[1] = 50000000000ull; memory[2] = 30000000000ull; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size)
{ return size < strlen(strcpy(name, "NVIDIA H100")); }
"""


@pytest.fixture(params=["stand-in", "compiled"])
def library(request, folder):
    if request.param == "stand-in":
        return nvml.Nvml(StandIn())
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make NVML's like with")
    write(folder / "nvml.c", SOURCE)
    path = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, str(folder / "nvml.c")], check=True)
    return nvml.load(path)


def test_gpus_are_read_through_nvml_and_one_that_cannot_be_is_left_out(library, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert library.read() == [(0, 40, 30 * GB, 80 * GB, "NVIDIA H100")]
    for unseen in ("1", "", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", unseen)
        assert library.read() == []
    for devices in ("1, 0", "GPU-8932f937"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        assert [device.gpu for device in library.read()] == [0]


def test_without_the_library_there_are_no_gpus():
    assert nvml.load("libof-nobody.so.9") is None
    assert nvml.load(ctypes.util.find_library("c") or "libc.so.6") is None


def test_the_seconds_in_which_a_gpu_was_busy_add_up():
    gpus = Gpus(lambda: nvml.Nvml(StandIn()), every=0.01)
    gpus.watch()
    gpus.watch()

    assert until(lambda: gpus.uses and gpus.uses[0].watched >= 0.03)
    [use] = gpus.uses
    assert (use.index, use.memory, use.limit, use.model) == (0, 30 * GB, 80 * GB, "NVIDIA H100")
    assert use.busy == pytest.approx(0.4 * use.watched)


def test_a_process_whose_name_is_cut_within_a_character_is_measured():
    code = (
        "import ctypes; name = ctypes.c_char_p('gpt-\u043e\u0431\u0443\u0447\u0435\u043d'.encode());"
        "ctypes.CDLL(None).prctl(15, name, 0, 0, 0); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert alive(process.pid)
        assert rank_use(0, f"/proc/{process.pid}", {}, 0.1).tasks == 1
        process.communicate(b"\n")
