"""What every service promises (`cloudtrain/targets/contract.py`), service by service. A new service adds a row to PLACES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import CloudtrainError, RunNotFound, UsageError
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.targets.contract import Service
from tests.deadlines import DEADLINE
from tests.targets.azureml.place import azureml
from tests.targets.places import Place, eventually
from tests.targets.sagemaker.place import sagemaker

pytestmark = pytest.mark.lifecycle

THREE_LINES = (
    "import sys\nprint('one')\nprint('two', flush=True)\nprint('three', file=sys.stderr)\n"
)
ENDLESS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"

PLACES: dict[str, Callable[[Place], AbstractContextManager[Place]]] = {
    "local": nullcontext,
    "sagemaker": sagemaker,
    "azureml": azureml,
}
"""Target to the place where its jobs run: something with `plan`, `submit`, `send` and `service`."""

USES: dict[str, Callable[[Service, RunRef, Path], object]] = {
    "status": lambda service, ref, _: service.status(ref),
    "logs": lambda service, ref, _: list(service.logs(ref)),
    "follow": lambda service, ref, _: list(service.logs(ref, follow=True)),
    "stop": lambda service, ref, _: service.stop(ref),
    "download": lambda service, ref, folder: service.download(ref, "model/", folder),
}


@pytest.fixture(params=PLACES)
def anywhere(request: pytest.FixtureRequest, place: Place) -> Iterator[Place]:
    """Each service's place in turn."""
    with PLACES[request.param](place) as found:
        yield found


def test_unknown_run(anywhere: Place, tmp_path: Path) -> None:
    """A run that does not exist is RunNotFound, whatever is asked of it."""
    known = anywhere.submit(THREE_LINES)
    known.wait()
    unknown = RunRef(known.ref.target, known.ref.place, "nobody-1")
    for name, use in USES.items():
        with pytest.raises(RunNotFound) as caught:
            use(anywhere.service, unknown, tmp_path)
        assert "nobody-1" in caught.value.message, name
        assert caught.value.hint, name


def test_has(anywhere: Place) -> None:
    """`has` knows the runs that exist, and no others; the plan tells their references beforehand."""
    plan, bundle = anywhere.plan(THREE_LINES)
    assert not anywhere.service.has(plan.ref)
    anywhere.service.upload(plan, bundle)
    run = anywhere.send(plan)
    assert run.ref == plan.ref
    assert anywhere.service.has(run.ref)
    assert not anywhere.service.has(run.ref._replace(name="run-2"))


def test_same_input_same_request(anywhere: Place) -> None:
    """The same job, target and context give the same bytes."""
    first, second = (anywhere.plan(THREE_LINES)[0] for _ in range(2))
    assert first.request_json == second.request_json


def test_upload_once(anywhere: Place) -> None:
    """A bundle that is there already is not written again."""
    plan, bundle = anywhere.plan(THREE_LINES)
    assert [anywhere.service.upload(plan, bundle) for _ in range(2)] == [True, False]


def test_code(anywhere: Place, tmp_path: Path) -> None:
    """The code that was uploaded can be had again."""
    plan, bundle = anywhere.plan({"train.py": THREE_LINES, "lib/part.py": "x = 1\n"})
    anywhere.service.upload(plan, bundle)
    upload = next(item for item in plan.uploads if item.sha256 == bundle.sha256)
    folders = list(anywhere.service.code(plan.ref, upload, tmp_path))
    assert [(folder / "lib/part.py").read_text() for folder in folders] == ["x = 1\n"]
    assert (folders[0] / "train.py").read_text() == THREE_LINES


def test_finished_run_logs_whole(anywhere: Place) -> None:
    """The log of a finished run has every line, says who wrote it where, and ends."""
    run = anywhere.submit(THREE_LINES)
    assert run.wait().state is RunState.SUCCEEDED
    written = {(line.stream, line.text) for line in run.lines()}
    assert written == {("stdout", "one"), ("stdout", "two"), (anywhere.stderr, "three")}
    assert {line.rank for line in run.lines()} == {0}
    assert run.lines() == run.lines(follow=True)


def test_follow_to_the_last_line(anywhere: Place) -> None:
    """Following yields each line once, in order, and ends after the last one."""
    script = "import time\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(0.01)\n"
    run = anywhere.submit(script)
    seen: list[RunState] = []
    texts = [
        line.text
        for line in run.lines(follow=True, on_status=lambda status: seen.append(status.state))
    ]
    assert texts == [str(n) for n in range(40)]
    assert seen[-1] is RunState.SUCCEEDED
    assert run.status.state is RunState.SUCCEEDED


@pytest.mark.slow
def test_two_followers(anywhere: Place) -> None:
    """Who comes later reads from the beginning, and takes nothing away from others."""
    run = anywhere.submit(ENDLESS)
    first = anywhere.service.logs(run.ref, follow=True)
    assert next(first).text == "up"
    assert next(anywhere.service.logs(run.ref, follow=True)).text == "up"
    run.service.stop(run.ref)
    assert list(first) == []


def test_every_process_can_be_read(anywhere: Place) -> None:
    """Each process's output can be read alone. A rank that there is not wrote nothing, or is an error that says so."""
    run = anywhere.submit(
        "import os\nprint('mask', os.environ['OMP_NUM_THREADS'])\n",
        resources=ct.Resources(instance_count=3),
        target=ct.Local(instance_count=3),
    )
    run.wait()
    assert [len(run.texts(rank)) for rank in (0, 1, 2)] == [1, 1, 1]
    with suppress(UsageError):
        assert run.texts(3) == []


def test_stop_is_idempotent(anywhere: Place) -> None:
    """Stopping twice, or a finished run, is the same as stopping once."""
    run = anywhere.submit(ENDLESS)
    run.wait_for_line("up")
    for _ in range(3):
        anywhere.service.stop(run.ref)
    stopped = run.wait()
    assert stopped.state is RunState.STOPPED
    anywhere.service.stop(run.ref)
    assert run.status == stopped


def test_stop_leaves_a_finished_run(anywhere: Place) -> None:
    """A run that has succeeded stays so."""
    run = anywhere.submit(THREE_LINES)
    finished = run.wait()
    anywhere.service.stop(run.ref)
    assert run.status == finished


def test_failed_run_has_a_reason(anywhere: Place) -> None:
    """A failed run says why in one line."""
    status = anywhere.submit("raise ValueError('bad thing')").wait()
    assert status.state is RunState.FAILED
    assert status.reason is not None
    assert "ValueError: bad thing" in status.reason
    assert "\n" not in status.reason


def test_runs_newest_first(anywhere: Place) -> None:
    """`runs` lists every run, the newest first."""
    place = anywhere.plan("")[0].place
    assert list(anywhere.service.runs(place)) == []
    refs = [anywhere.submit("", name=f"run-{n}").ref for n in (1, 2, 3)]
    assert [item.ref for item in anywhere.service.runs(place)] == refs[::-1]


def test_times(anywhere: Place) -> None:
    """A run has started, and at the end has ended, later."""
    run = anywhere.submit(ENDLESS)
    running = eventually(lambda: (status := run.status).state is RunState.RUNNING and status)
    assert running.started
    assert running.ended is None
    run.service.stop(run.ref)
    ended = run.wait(DEADLINE)
    assert ended.started == running.started
    assert ended.ended is not None
    assert ended.ended > running.started


def test_download(anywhere: Place, tmp_path: Path) -> None:
    """What the script wrote to its model folder arrives, subfolders too."""
    script = (
        "from cloudtrain.runtime import model_dir\nmodel = model_dir()\n"
        "(model / 'parts').mkdir()\n(model / 'weights.bin').write_bytes(b'w')\n(model / 'parts/1').write_bytes(b'p')\n"
    )
    run = anywhere.submit(script)
    run.wait()
    files = anywhere.service.download(run.ref, "model/", tmp_path / "got")
    assert {path.relative_to(tmp_path / "got").as_posix(): path.read_bytes() for path in files} == {
        "weights.bin": b"w",
        "parts/1": b"p",
    }


@pytest.mark.slow
def test_download_of_what_does_not_exist(anywhere: Place, tmp_path: Path) -> None:
    """An unknown place is an error that names those that exist."""
    run = anywhere.submit("")
    run.wait()
    with pytest.raises(CloudtrainError) as caught:
        anywhere.service.download(run.ref, "modle/", tmp_path)
    assert "model" in str(caught.value.hint)
