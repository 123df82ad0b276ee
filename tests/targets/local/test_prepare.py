"""What the processes of a local run find: arguments, environment, ports, working directory; and what this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.runtime.hardware import cpu_count, gpu_ids
from cloudtrain.system.plugins import pip_line
from cloudtrain.system.processes import HAS_PROC
from cloudtrain.targets.common.launch import host_name
from cloudtrain.targets.local.prepare import Ports, fill
from tests.targets.places import Place

SHOW = (
    "import json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ), os.getcwd(), sys.path]))"
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("/code:${{env.PYTHONPATH}}", "/code:/a:/b"),
        ("/code:${{env.NOTHING}}", "/code"),
        ("${{env.NOTHING}}:/code", "/code"),
        ("127.0.0.1:${{ports.rendezvous}}", "127.0.0.1:4711"),
        ("a:", "a:"),
        ("$HOME ${X} {{env.A}}", "$HOME ${X} {{env.A}}"),
    ],
)
def test_fill(text: str, filled: str) -> None:
    """Ports and variables are filled in; an empty one leaves no empty part in a list of paths."""
    assert fill(text, {"rendezvous": 4711}, {"PYTHONPATH": "/a:/b"}) == filled


def test_ports_differ() -> None:
    """Each name has a port of its own, and it is free once released."""
    ports = Ports([f"worker_{n}" for n in range(20)])
    ports.release()
    assert len(set(ports.numbers.values())) == 20
    assert all(1024 < number < 32_768 for number in ports.numbers.values())


@pytest.mark.parametrize(
    ("outgoing", "first", "last"),
    [
        ("32768\t60999\n", 20_000, 32_767),
        ("49152\t65535\n", 20_000, 32_767),
        ("24000 65535", 20_000, 23_999),
        ("20500 65535", 5_000, 20_499),
        ("10000 65535", 5_000, 9_999),
        ("1024 65535", 20_000, 32_767),  # no ports are left below
        ("", 20_000, 32_767),
        (None, 20_000, 32_767),  # as on macOS
    ],
)
def test_ports_are_none_of_outgoing_connections(
    outgoing: str | None, first: int, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection cannot take a port before the run's process listens there."""
    file = tmp_path / "ip_local_port_range"
    if outgoing is not None:
        file.write_text(outgoing)
    monkeypatch.setattr("cloudtrain.targets.local.prepare._OUTGOING", str(file))
    ports = Ports([f"worker_{n}" for n in range(100)])
    ports.release()
    assert all(first <= number <= last for number in ports.numbers.values())


def test_surroundings_of_a_script(place: Place) -> None:
    """The script runs in its code's folder, sees the submitter's variables, and imports its own modules first."""
    place.environ |= {"TOKEN": "secret", "PYTHONPATH": "/theirs"}
    environment = ct.Environment(variables={"NCCL_DEBUG": "INFO"})
    run = place.submit(
        SHOW, hyperparameters={"lr": 0.1, "name": "it's $HOME; ok"}, environment=environment
    )
    run.wait()
    argv, environ, folder, path = json.loads(run.texts()[0])
    code = str(run.folder / "code")
    assert argv == ["train.py", "--lr", "0.1", "--name", "it's $HOME; ok"]
    assert folder == code
    assert (environ["TOKEN"], environ["NCCL_DEBUG"]) == ("secret", "INFO")
    assert environ["PYTHONPATH"] == f"{code}:/theirs"
    assert path[1] == code
    assert environ["CLOUDTRAIN_RUN_DIR"] == str(run.folder)


def program(path: Path) -> str:
    """An empty file that can be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return str(path)


def test_mpirun_of_the_interpreter_that_runs_the_job(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun beside the target's interpreter, then on the PATH, then beside our own; what is missing is told."""
    ours, theirs = program(tmp_path / "ours/bin/python"), program(tmp_path / "theirs/bin/python")
    monkeypatch.setattr("sys.executable", ours)
    place.environ["PATH"] = str(tmp_path / "path")

    def started(python: str | None = None) -> str:
        argv: list[str] = place.plan(distribution=ct.MPI(), target=ct.Local(python=python))[
            0
        ].request["processes"][0]["argv"]
        return argv[0]

    with pytest.raises(ct.JobError) as missing:
        started(theirs)
    (problem,) = missing.value.problems
    assert (
        problem.message
        == f"`mpi` needs `mpirun`, which is neither beside `{theirs}` nor on the PATH"
    )
    assert str(problem.hint).startswith(f"`{pip_line('mpi')}`")
    for found in (
        tmp_path / "ours/bin/mpirun",
        tmp_path / "path/mpirun",
        tmp_path / "theirs/bin/mpirun",
    ):
        assert program(found) == started(theirs)
    assert started() == str(tmp_path / "ours/bin/mpirun")
    program(tmp_path / "path/python3")
    assert started("python3") == str(tmp_path / "path/mpirun")


def test_variables_of_an_outer_launcher(place: Place) -> None:
    """A run that is submitted from inside another one, or under a launcher, is not part of it."""
    place.environ |= {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "TF_CONFIG": "{}",
        "OMPI_COMM_WORLD_RANK": "3",
    }
    place.environ |= {"CLOUDTRAIN_RUN_DIR": "/outer", "CLOUDTRAIN_INPUT_TRAIN": "/outer/train"}
    run = place.submit(SHOW)
    run.wait()
    environ = json.loads(run.texts()[0])[1]
    assert environ.keys().isdisjoint({"RANK", "WORLD_SIZE", "TF_CONFIG", "OMPI_COMM_WORLD_RANK"})
    assert "CLOUDTRAIN_INPUT_TRAIN" not in environ
    assert environ["CLOUDTRAIN_RUN_DIR"] == str(run.folder)


def test_modules_in_the_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `json.py` in the working directory or on PYTHONPATH does not reach the supervisor."""
    for name in ("json.py", "subprocess.py", "cloudtrain.py"):
        (place.root / name).write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(place.root)
    place.environ["PYTHONPATH"] = str(place.root)
    run = place.submit(command="echo fine")
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["fine"]


def test_metrics(place: Place) -> None:
    """The status holds the newest value of each metric."""
    script = "from cloudtrain import runtime\nfor n in range(5): runtime.report(step=n, loss=1 / (n + 1))\n"
    status = place.submit(script + "runtime.report(accuracy=0.5)").wait()
    assert status.metrics == {"step": 4.0, "loss": 0.2, "accuracy": 0.5}


def test_supervisor_imports_little(place: Place) -> None:
    """The supervisor and the guard do without site-packages: pydantic is not loaded, nor psutil where /proc tells enough."""
    run = place.submit("import time\nprint('up', flush=True)\ntime.sleep(3600)")
    run.wait_for_line("up")
    for module in ("supervisor", "guard"):
        mapped = Path(f"/proc/{run.ours(module).pid}/maps").read_text()
        assert "python" in mapped
        assert "pydantic" not in mapped
        assert not (HAS_PROC and "psutil" in mapped)
    run.service.stop(run.ref)
    run.wait()


@pytest.mark.parametrize(
    ("devices", "visible", "ids"),
    [
        (4, None, ("0", "1", "2", "3")),
        (4, "2,3", ("2", "3")),
        (4, "", ()),
        (4, "0,-1,1", ("0",)),
        (4, "GPU-8932f937, MIG-1", ("GPU-8932f937", "MIG-1")),
        (0, None, ()),
        (0, "0,1", ()),
        (11, None, tuple(map(str, range(11)))),
    ],
)
def test_gpus(tmp_path: Path, devices: int, visible: str | None, ids: tuple[str, ...]) -> None:
    """GPUs are those that exist, as far as CUDA_VISIBLE_DEVICES shows them."""
    for name in (*(f"nvidia{n}" for n in range(devices)), "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert (
        gpu_ids({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, devices=tmp_path)
        == ids
    )


def test_machine() -> None:
    """There is a CPU, and a name that a reference can hold."""
    assert cpu_count() >= 1
    reference = RunRef("local", host_name(), "run-1")
    assert RunRef.parse(str(reference)) == reference
