"""The notices about a machine, over hours that are numbers; and what a watch writes and prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runtime.machine import Disk, Machine
from cloudtrain.runtime.machine_watch import Alarm, Alarms, MachineWatch
from cloudtrain.signals.notices import read_notices
from cloudtrain.signals.rows import machine_rows, newest_machines, read_files
from tests.deadlines import DEADLINE
from tests.runtime.nvml import fake_nvml

GIB = 1 << 30
MINUTE = 60
START = 1.7e9


class Hours:
    """Looks at a machine every ten seconds of no time."""

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.now = START

    def look(
        self,
        minutes: float,
        values: Mapping[str, float] | None = None,
        free: Iterable[float] = (),
        alerts: Iterable[str] = (),
    ) -> list[tuple[Alarm, float]]:
        """Return the alarms with the minutes at which they came. `free` are gigabytes of a disk,
        look by look."""
        found = []
        left = list(free) or [500.0]
        for number in range(round(minutes * 6)):
            disks = [Disk("/data", left[min(number, len(left) - 1)] * GIB)]
            for alarm in self.alarms.look(values or {}, disks, list(alerts), self.now):
                found.append((alarm, (self.now - START) / MINUTE))
            self.now += 10
        return found


def gpus(*rates: float) -> dict[str, float]:
    return {f"gpu{number}.utilization": rate for number, rate in enumerate(rates)}


def kinds(found: Iterable[tuple[Alarm, float]]) -> list[tuple[str, bool]]:
    return [(alarm.kind, alarm.is_over) for alarm, _ in found]


def test_gpus_that_idle_for_a_quarter_of_an_hour() -> None:
    """One notice, after 15 minutes and not before, and its end as soon as one of them works."""
    hours = Hours()
    assert hours.look(20, gpus(80, 90)) == []
    assert hours.alarms.idle_seconds == 0
    ((alarm, minute),) = hours.look(60, gpus(0, 9.9))
    assert (alarm.kind, minute) == ("idle", 35)
    assert "2 of 2 GPUs" in alarm.text
    assert hours.alarms.idle_seconds == 60 * MINUTE - 10
    ((alarm, _),) = hours.look(1, gpus(0, 10))
    assert (alarm.is_over, hours.alarms.idle_seconds) == (False, 0)
    assert "1 of 2 GPUs" in alarm.text
    assert kinds(hours.look(1, gpus(50, 0))) == [("idle", True)]


def test_a_single_look_at_work_begins_the_time_anew() -> None:
    hours = Hours()
    for _ in range(4):
        assert hours.look(14, gpus(5)) == []
        assert hours.look(1 / 6, gpus(50)) == []


def test_some_of_the_gpus_idle() -> None:
    """They are named, and it is no reason to stop the run."""
    hours = Hours()
    ((alarm, _),) = hours.look(30, gpus(99, 0, 99, 3))
    assert alarm.text.endswith(": gpu1, gpu3")
    assert hours.alarms.idle_seconds == 0
    assert kinds(hours.look(30, gpus(0, 0, 0, 0))) == [("idle", False)]


@pytest.mark.parametrize("values", [{}, {"cpu": 0.0}, {"gpu0.memory": 0.0, "gpu0.power": 60.0}])
def test_no_gpu_that_tells_what_it_does_is_not_idle(values: dict[str, float]) -> None:
    hours = Hours()
    assert hours.look(60, values) == []
    assert hours.alarms.idle_seconds == 0


def test_a_machine_that_slept_was_not_idle() -> None:
    """Nobody knows what would have been while a laptop sleeps, or the clock was set."""
    hours = Hours()
    hours.look(10, gpus(0))
    hours.now += 8 * 3600
    assert hours.look(14, gpus(0)) == []
    assert kinds(hours.look(2, gpus(0))) == [("idle", False)]
    hours.now -= 3600
    hours.look(1, gpus(0))
    assert hours.alarms.idle_seconds < 2 * MINUTE


def memory(gigabytes: float) -> dict[str, float]:
    return {"memory": gigabytes * GIB, "memory_limit": 100.0 * GIB}


def test_memory_near_its_limit() -> None:
    """At 95%; over when it was lower for some minutes, so that a notice does not come and go."""
    hours = Hours()
    assert hours.look(10, memory(94.9)) == []
    ((alarm, minute),) = hours.look(10, memory(95))
    assert (alarm.kind, alarm.is_over, minute) == ("memory", False, 10)
    for _ in range(5):
        assert hours.look(4, memory(90)) == []
        assert hours.look(1, memory(97)) == []
    assert kinds(hours.look(10, memory(90))) == [("memory", True)]
    assert kinds(hours.look(1, memory(96))) == [("memory", False)]


def falling(start: float, per_minute: float, minutes: int) -> list[float]:
    return [max(0.0, start - per_minute * look / 6) for look in range(minutes * 6)]


@pytest.mark.parametrize(
    ("start", "per_minute", "before"),
    [
        (100.0, 20.0, 3),  # full in 5 minutes
        (500.0, 10.0, 41),  # in 50
        (1000.0, 10.0, 42),  # in 100: when an hour is left
    ],
)
def test_a_disk_that_fills(start: float, per_minute: float, before: float) -> None:
    """One notice, within an hour of its end and while there is time."""
    hours = Hours()
    full = start / per_minute
    ((alarm, minute),) = hours.look(full, free=falling(start, per_minute, int(full)))
    assert alarm.kind == "disk"
    assert full - 60 <= minute <= before
    assert "`/data`" in alarm.text
    assert kinds(hours.look(90, free=[start])) == [("disk", True)]


def sawtooth(minutes: int) -> list[float]:
    """Checkpoints of 20 GB every 10 minutes, of which the last three are kept."""
    free: list[float] = []
    for look in range(minutes * 6):
        written = 1 + look // 60
        free.append(200 - 20 * min(written, 3) - (20 if look % 60 < 6 and written > 3 else 0))
    return free


@pytest.mark.parametrize(
    "free",
    [
        [200.0],
        [200.0, 190.0, 170.0, 150.0, 140.0, 130.0],  # a model of 70 GB in a minute
        falling(500, 1, 120),  # full in 8 hours
        sawtooth(180),
    ],
    ids=["still", "one large file", "slowly", "checkpoints"],
)
def test_a_disk_that_does_not_fill_soon(free: list[float]) -> None:
    assert Hours().look(max(60, len(free) / 6), free=free) == []


def test_an_alert_is_told_once() -> None:
    found = Hours().look(10, gpus(50), alerts=["gpu3 is lost"])
    assert found == [(Alarm("alert", "gpu3 is lost"), 0)]


def machine(monkeypatch: pytest.MonkeyPatch, utilization: int = 0) -> Machine:
    monkeypatch.setenv("FAKE_NVML_UTILIZATION", str(utilization))
    return Machine([], library=str(fake_nvml()))


def test_a_watch_writes_rows_and_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each instance apart. Rows have no step, and are no metrics."""
    for instance in (0, 1):
        watch = MachineWatch(
            machine(monkeypatch), instance, folder=str(tmp_path), rank=8 * instance
        )
        for look in range(100):
            watch.look(START + 10 * look)
    files = read_files(str(tmp_path))
    assert newest_machines(files, START + 1000)[1]["gpu1.utilization"] == 0
    assert newest_machines(files, START + 9999) == {}
    assert len(machine_rows(files, instance=1)) == 100
    columns = machine_rows(read_files(str(tmp_path))).columns()
    assert len(columns["instance1/gpu0.power"].value) == 100
    assert columns["instance0/gpu1.power"].time[:2].tolist() == [START, START + 10]
    (first, second) = read_notices(str(tmp_path))
    assert (first.kind, first.rank, second.rank, second.ended) == ("idle", 0, 8, None)
    assert second.text.startswith("instance 1: 2 of 2 GPUs")


def test_a_watch_without_a_folder_prints_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the means of the minute, so that a log does not fill."""
    monkeypatch.setattr("time.time", lambda: START)
    it = machine(monkeypatch)
    watch = MachineWatch(it, folder=None)
    for look in range(1, 13):
        monkeypatch.setenv("FAKE_NVML_UTILIZATION", str(look % 2 * 50))
        watch.look(START + 10 * look)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("[machine] ")
        assert " gpu0.utilization=25 " in line


def threads(**variables: str) -> str:
    """The threads of a script that uses the runtime, and nothing more, once those of ours have begun to watch."""
    code = (
        "from cloudtrain import runtime; runtime.detect_environment(); import sys, threading, time\n"
        "names = lambda: [thread.name for thread in threading.enumerate()]\n"
        "while 'cloudtrain-watch' in names() and 'cloudtrain.runtime.hangs.watch' not in sys.modules:\n"
        "    time.sleep(0.01)\n"
        "print(*names())"
    )
    root = str(Path(cloudtrain.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    ).stdout


def test_who_watches(tmp_path: Path) -> None:
    """In a cloud, one process of each instance. Elsewhere something of ours runs beside the
    script; and a script that is no part of a run is left alone."""
    cloud = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "TMPDIR": str(tmp_path)}
    cloud |= {"SM_MODEL_DIR": str(tmp_path), "TRAINING_JOB_NAME": "job"}
    ranked = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert "cloudtrain-machine" in threads(**cloud)
    assert "cloudtrain-machine" not in threads(**cloud, **ranked)
    assert "cloudtrain-machine" not in threads(**cloud, CLOUDTRAIN_RUN_DIR=str(tmp_path))
    assert "cloudtrain-machine" not in threads()
