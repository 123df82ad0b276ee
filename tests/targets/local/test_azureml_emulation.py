"""Jobs that really run here as Azure ML would run them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext
from cloudtrain.plans.states import RunState
from cloudtrain.targets.azureml.launch import processes, service_layout
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.common.launchers import loopback_variables
from tests.deadlines import GRACE
from tests.programs import write_program
from tests.targets.azureml.test_emulate import OWN, WORKSPACE, azureml_request
from tests.targets.places import Place, Run, digits_that_wait, eventually

pytestmark = pytest.mark.lifecycle

SEE = """
import json, os, sys
from pathlib import Path
from cloudtrain import runtime
seen = runtime.detect_environment()
print(json.dumps({
    "argv": sys.argv[1:], "rank": seen.rank, "world": seen.world_size, "instance": seen.node_rank,
    "cwd": os.getcwd(), "python": sys.executable, "platform": seen.platform, "master": seen.master_addr,
    "port": seen.master_port, "train": sorted(p.name for p in runtime.input_dir("train").iterdir()),
}))
(runtime.model_dir() / f"{seen.rank}.pt").write_text("weights")
(runtime.output_dir("scores") / f"{seen.rank}.csv").write_text("1")
Path("outputs").mkdir(exist_ok=True)
Path("outputs", f"{seen.rank}.png").write_text("a picture")
"""
ENVIRONMENT = {"framework": "pytorch", "version": "2.8"}


def emulate(
    place: Place,
    script: str | dict[str, str] = "",
    *,
    instances: int = 2,
    processes: int = 1,
    **job: Any,
) -> Run:
    """A job on so many instances with so many processes on each."""
    job.setdefault("distribution", ct.Torch())
    job.setdefault("environment", ENVIRONMENT)
    job.setdefault("resources", {"instance_count": instances})
    target = ct.Local(
        emulate="azureml",
        instance_count=instances,
        processes_per_instance=processes,
        grace_period=GRACE,
    )
    return place.submit(script, target=target, **job)


def process_of(run: Run, rank: int) -> psutil.Process:
    """The process that is this rank, as the service names it."""
    return run.process_with("AZUREML_PROCESS_NAME", f"rank_{rank}")


def as_on_azure(env: dict[str, str], run: Run, instance: int) -> dict[str, str]:
    """A process's variables with places and addresses as the service has them, without those that we add."""
    text = json.dumps({name: value for name, value in env.items() if name not in OWN})
    job = f"/mnt/azureml/cr/j/{run.ref.name}"
    text = text.replace(f"{run.folder}/instances/{instance}/wd", f"{job}/exe/wd")
    text = text.replace(f"{run.folder}/data", f"{job}/cap/data-capability/wd").replace(
        '"lo"', '"eth0"'
    )
    for number in (1, 2):
        text = text.replace(f"127.0.0.{number}", f"10.0.0.{3 + number}")
    found: dict[str, str] = json.loads(text)
    if "MASTER_ADDR" in found:
        found["MASTER_PORT"] = "6105"
    else:
        found.pop("MASTER_PORT", None)
    if "AZ_BATCH_MASTER_NODE" in found:
        found["AZ_BATCH_MASTER_NODE"] = found["AZ_BATCH_MASTER_NODE"].partition(":")[0] + ":6000"
    return found


@pytest.mark.torch
@pytest.mark.parametrize("distribution", ["torch", "mpi"])
def test_digits_ddp_on_two_instances(place: Place, distribution: str) -> None:
    """The bundled job trains under PyTorch's and under MPI's variables, and those are the launch view's."""
    changes = ["resources.instance_count=2", "hyperparameters.epochs=2"]
    job = ct.bundled_job("digits_ddp", [*changes, f"distribution.type={distribution}"])
    target = ct.Local(emulate="azureml", instance_count=2, processes_per_instance=1)
    source, account = digits_that_wait(place), place.account(target)
    tree = scan(source)
    plan = place.compile(job, target, CompileContext("digits-1", tree.identity, account))
    place.service.upload(plan, tree)
    run = place.send(plan)
    run.wait_for_line("processes=2 device=cpu backend=gloo")
    seen = [process_of(run, rank) for rank in range(2)]
    variables, commands = (
        [process.environ() for process in seen],
        [process.cmdline() for process in seen],
    )
    (run.folder / "go").touch()
    status = run.wait()
    assert status.state is RunState.SUCCEEDED, status
    assert status.metrics["test_accuracy"] > 0.5
    assert (run.folder / "data/model/model.pt").exists()

    body = Body(azureml_request(job, target, account, "digits-1"))
    expected = list(
        processes(body, service_layout(body, "digits-1", WORKSPACE, account.machine.gpus))
    )
    # the shell's own
    inherited = {name for name in os.environ if name not in OWN} | {"PWD", "OLDPWD", "SHLVL", "_"}
    for process, real, argv in zip(expected, variables, commands, strict=True):
        ours = as_on_azure(real, run, process.instance)
        # what keeps a run here off the network
        added = loopback_variables("lo").keys() - process.env.keys()
        added |= {"CLOUDTRAIN_RUN_TOKEN"}  # by which the supervisor finds the run's processes
        assert {
            name: value for name, value in ours.items() if name not in inherited | added
        } == process.env
        assert argv == [account.python, *process.argv[2].split()[1:]]
    assert ("RANK" in variables[1]) == (distribution == "torch")


def test_what_the_script_finds(place: Place, tmp_path: Path) -> None:
    """Data, exact arguments, a copy of the code for each instance, the target's interpreter, and results that can be
    downloaded; in a state folder with characters that mean something to a shell.
    """
    odd = Place(tmp_path / 'it\'s "a" $place', place.environ)
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1")
    hostile = "two words; $(touch gone) 'single' \"double\" \\ ünï\nline"
    run = emulate(
        odd,
        SEE,
        hyperparameters={
            "data": "${{inputs.train}}",
            "inside": "a b ${{inputs.train}}",
            "name": hostile,
        },
        inputs={"train": {"local": str(data)}},
        outputs={"scores": {}},
    )
    try:
        assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    finally:
        odd.clean_up()
    seen = [json.loads(run.texts(rank)[-1]) for rank in range(2)]
    train = f"{run.folder}/data/INPUT_train"
    for number, each in enumerate(seen):
        assert each["argv"] == ["--data", train, "--inside", f"a b {train}", "--name", hostile]
        assert (each["rank"], each["world"], each["instance"], each["platform"]) == (
            number,
            2,
            number,
            "azureml",
        )
        assert each["cwd"] == f"{run.folder}/instances/{number}/wd"
        assert (each["python"], each["train"]) == (sys.executable, ["a.csv"])
    copies = {
        what: sorted(path.name for path in odd.service.download(run.ref, what, tmp_path / what))
        for what in ("model", "outputs/scores", "outputs", "user_logs")
    }
    assert copies == {
        "model": ["0.pt", "1.pt"],
        "outputs/scores": ["0.csv", "1.csv"],
        "outputs": ["0.png", "1.png"],
        "user_logs": ["std_log_process_0.txt", "std_log_process_1.txt"],
    }
    assert json.loads((tmp_path / "user_logs/std_log_process_1.txt").read_text()) == seen[1]


def test_mpi_variables_lead_to_the_master(place: Place, tmp_path: Path) -> None:
    """Without MASTER_ADDR and RANK the runtime finds rank, instance and master, at a port that is free here."""
    (tmp_path / "train").mkdir()
    inputs = {"train": {"local": str(tmp_path / "train")}}
    run = emulate(
        place, SEE, processes=2, distribution=ct.MPI(), inputs=inputs, outputs={"scores": {}}
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    seen = [json.loads(run.texts(rank)[-1]) for rank in range(4)]
    assert [(each["rank"], each["instance"], each["world"]) for each in seen] == [
        (0, 0, 4),
        (1, 0, 4),
        (2, 1, 4),
        (3, 1, 4),
    ]
    assert {each["master"] for each in seen} == {"127.0.0.1"}
    assert len({each["port"] for each in seen} - {6105}) == 1
    assert any("finds itself alone" in note for note in run.plan.notes)


def test_a_failure_ends_the_run(place: Place) -> None:
    """One process that fails ends the others, as on the service, and the status names its rank and its error."""
    script = """
import os, time
if os.environ["RANK"] == "1":
    raise KeyError("mine")
time.sleep(3600)
"""
    run = emulate(place, script)
    status = run.wait()
    assert status.state is RunState.FAILED
    assert status.reason == "rank 1 (instance 1) failed with exit code 1: KeyError: 'mine'"
    assert (status.failed_rank, status.exit_code) == (1, 1)
    assert run.nothing_is_left()


@pytest.mark.parametrize("command", [None, "true && python train.py"], ids=["script", "shell line"])
def test_stop_lets_the_script_save(place: Place, command: str | None) -> None:
    """SIGTERM reaches the script of every instance, behind a shell too, and what it saves is at the job's own place."""
    script = """
from cloudtrain import runtime
import time
runtime.watch_for_stop()
print("ready", flush=True)
while not runtime.should_stop():
    time.sleep(0.02)
(runtime.checkpoint_dir() / f"{runtime.detect_environment().rank}.pt").write_text("saved")
"""
    kept = place.root / "kept"
    job = {} if command is None else {"command": command}
    run = emulate(place, script, checkpoint={"local": str(kept)}, **job)
    run.wait_for_line("ready", times=2)
    place.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    eventually(
        lambda: sorted(path.name for path in kept.iterdir()) == ["0.pt", "1.pt"], "both saved"
    )
    assert run.nothing_is_left()
    copied = place.service.download(run.ref, "checkpoint", place.root / "copy")
    assert sorted(path.name for path in copied) == ["0.pt", "1.pt"]


def test_parameter_servers_end_with_the_workers(place: Place) -> None:
    """Servers and workers find each other's addresses; the servers are ended when every worker has succeeded."""
    script = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
host, port = config["cluster"]["ps"][0].split(":")
if task["type"] == "ps":
    with socket.create_server((host, int(port))) as server:
        while True:
            server.accept()[0].close()
while True:
    try:
        socket.create_connection((host, int(port))).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
print("task", task["type"], task["index"], flush=True)
"""
    run = emulate(
        place,
        script,
        instances=3,
        distribution=ct.TensorFlow(strategy="parameter_server"),
        environment={"framework": "tensorflow", "version": "2.16"},
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    assert [run.texts(rank) for rank in range(3)] == [["task worker 0"], ["task worker 1"], []]
    assert run.nothing_is_left()


def test_requirements_are_left_alone(place: Place) -> None:
    """What the job would install into its container is not installed into this machine's interpreter."""
    files = {"train.py": "print('trained')", "needs.txt": "./no-such-folder"}
    run = emulate(place, files, environment=ENVIRONMENT | {"requirements": "needs.txt"})
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())


def test_deepspeed_launcher(place: Place) -> None:
    """On each instance our launcher becomes `deepspeed`, which hears of all hosts and needs no ssh."""
    programs = place.root / "bin"
    programs.mkdir()
    write_program(
        programs / "deepspeed",
        "import sys\n"
        "print(open(sys.argv[sys.argv.index('--hostfile') + 1]).read().replace('\\n', ';'), *sys.argv[3:], flush=True)",
    )
    place.environ["PATH"] = f"{programs}:{place.environ['PATH']}"
    run = emulate(
        place,
        "",
        distribution=ct.DeepSpeed(launch="launcher", launcher_options="--num_gpus 2"),
        hyperparameters={"lr": 0.1},
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    for rank in range(2):
        words = next(text for text in run.texts(rank) if text.startswith("127.0.0.1 ")).split()
        assert words[:5] == [
            "127.0.0.1",
            "slots=2;127.0.0.2",
            "slots=2;",
            "--no_ssh",
            "--node_rank",
        ]
        assert words[5:8] == [str(rank), "--master_addr", "127.0.0.1"]
        assert words[-5:] == ["--num_gpus", "2", "train.py", "--lr", "0.1"]
