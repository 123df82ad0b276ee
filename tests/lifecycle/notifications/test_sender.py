"""No event is lost, and none comes twice unless a sender died between sending and recording."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from tests.lifecycle.notifications.sinks import Mail, Web
from tests.lifecycle.store.records import record
from tests.targets.places import eventually


class Senders:
    """Senders of a state folder, one after the other."""

    def __init__(self, process: subprocess.Popen[str], state_dir: Path) -> None:
        self._process = process
        self._state_dir = state_dir
        self.pid = 0

    def start(self, point: int = 0) -> int:
        """Start one that dies at a point of its way. Return its process id."""
        self.pid = self._ask(f"{self._state_dir} {point}")
        assert self.pid > 1
        return self.pid

    def serve(self, point: int = 0) -> bool:
        """Serve to the end, or to the point. Return whether it died."""
        self.start(point)
        return self.has_died()

    def has_died(self) -> bool:
        """Wait for the end of one that was started. Return whether it was killed."""
        self.pid = 0
        return self._ask("wait") != 0

    def kill(self) -> None:
        """Kill one that was started, and may have ended."""
        os.kill(self.pid, signal.SIGKILL)
        self.has_died()

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """What becomes the senders."""
    environ = {**os.environ, "CLOUDTRAIN_WATCH_INTERVAL": "0.01"}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("dying.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def senders(process: subprocess.Popen[str], state_dir: Path) -> Iterator[Senders]:
    """Senders of this test's state folder."""
    senders = Senders(process, state_dir)
    yield senders
    if senders.pid:  # the test has failed
        senders.kill()


def _end_runs(state_dir: Path, *names: str, have_started: bool = False) -> None:
    """Record the failures of runs."""
    with open_store(state_dir) as store:
        store.outbox.turn_on(0.0)
        for name in names:
            lock = store.reserve(record(name, len(store.newest()) + 1))
            assert lock is not None
            lock.release(remove=True)
            now = time.time()
            started = now if have_started else None
            store.record(name, RunStatus(RunState.FAILED, "no memory", started, ended=now))


def _ids_of_command(got: Path) -> list[str]:
    lines = got.read_text().splitlines() if got.exists() else []
    return [json.loads(line)["id"] for line in lines]


def _got(web: Web, mail: Mail, got: Path) -> Counter[tuple[str, str]]:
    """How often each channel got each event."""
    ids = {"webhook": web.ids, "email": mail.ids, "command": _ids_of_command(got)}
    counts = Counter[tuple[str, str]]()
    for channel, names in ids.items():
        counts.update((channel, name.replace("/", ".")) for name in names)
    return counts


@pytest.mark.slow
def test_it_dies_between_any_two_steps(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """The next one sends what is left. It repeats only what was sent and not recorded."""
    settings(f'[notify]\nevents = ["failed"]\nwebhook = "{web.address}"\n')
    times = []
    has_died = True
    while has_died:
        name = f"job-{len(times)}-1"
        _end_runs(state_dir, name)
        has_died = senders.serve(point=len(times) + 1)
        if has_died:
            assert not senders.serve()
        times.append(web.ids.count(f"{name}/failed/1"))
    # it dies before it sends, before it records, after it, and when all is done
    assert times == [1, 2, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.lifecycle
def test_twenty_events_thirty_kills_and_two_sleeps(
    senders: Senders, state_dir: Path, web: Web, mail: Mail, everywhere: Path
) -> None:
    """None is lost, and each repeat has a kill of its own. A sleep repeats nothing."""
    names = [f"job-{number}-1" for number in range(10)]
    numbers = random.Random(1)
    deaths = 0
    turns = 0
    while deaths < 30:
        if turns < 8:
            _end_runs(state_dir, names[turns], have_started=True)
        senders.start()
        time.sleep(numbers.random() / 10)
        senders.kill()
        deaths += 1
        turns += 1
    assert not senders.serve()
    repeats = _got(web, mail, everywhere).total() - 3 * 2 * 8
    assert repeats <= 3 * deaths  # what three channels were sending

    for name in names[8:]:
        _end_runs(state_dir, name, have_started=True)
        pid = senders.start()
        time.sleep(numbers.random() / 10)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert not senders.has_died()

    counts = _got(web, mail, everywhere)
    expected = set()
    for channel in ("webhook", "email", "command"):
        for name in names:
            expected |= {(channel, f"{name}.started.1"), (channel, f"{name}.failed.1")}
    assert set(counts) == expected
    assert counts.total() - len(expected) == repeats


def test_nobody_waits_for_a_server_that_is_silent(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """Neither another channel, nor the events after it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings(
            f'[notify]\nevents = ["failed"]\nwebhook = "http://127.0.0.1:{port}"\n'
            f'[notify.other]\nwebhook = "{web.address}"\n'
        )
        _end_runs(state_dir, "job-1-1")
        senders.start()
        eventually(lambda: web.ids == ["job-1-1/failed/1"])
        _end_runs(state_dir, "job-2-1")
        eventually(lambda: web.ids == ["job-1-1/failed/1", "job-2-1/failed/1"])
        senders.kill()


def test_a_server_that_comes_back_gets_all(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """It is tried again until it answers, under the same id, and the store has why it failed."""
    settings(f'[notify]\nevents = ["failed"]\nwebhook = "{web.address}"\n')
    web.status = 503
    _end_runs(state_dir, "job-1-1")
    senders.start()
    eventually(lambda: len(web.got) > 1)
    with open_store(state_dir) as store:
        event, channel, _, error = store.outbox.failed()[0]
    assert (event, channel, error) == ("job-1-1/failed/1", "webhook", "HTTP 503")
    web.status = 200
    assert not senders.has_died()
    assert set(web.ids) == {"job-1-1/failed/1"}
    with open_store(state_dir) as store:
        assert not store.outbox.pending()


@pytest.mark.slow
def test_a_redirect_is_not_followed(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """The address that it names gets nothing."""
    settings(f'[notify]\nevents = ["failed"]\nwebhook = "{web.address}/a"\n')
    web.status = 307
    web.headers = {"Location": f"{web.address}/b"}
    _end_runs(state_dir, "job-1-1")
    senders.start()
    eventually(lambda: web.got)
    senders.kill()
    assert {request.path for request in web.got} == {"/a"}


@pytest.mark.slow
def test_without_channels_it_stops_recording(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """What is in the outbox then is never sent, also if `[notify]` comes back."""
    _end_runs(state_dir, "job-1-1")
    assert not senders.serve()
    settings(f'[notify]\nwebhook = "{web.address}"\n')
    assert not senders.serve()
    assert not web.got


@pytest.mark.slow
def test_a_run_that_is_gone_is_not_watched_for_ever(
    senders: Senders, state_dir: Path, web: Web, settings: Callable[[str], Path]
) -> None:
    """A sender ends that can only wait for what its target does not have."""
    settings(f'[notify]\nwebhook = "{web.address}"\n')
    with open_store(state_dir) as store:
        store.outbox.turn_on(0.0)
        lock = store.reserve(record("job-1-1"))
        assert lock is not None
        store.advance("job-1-1", "reported")
        lock.release(remove=True)
    assert not senders.serve()
    assert not web.got
