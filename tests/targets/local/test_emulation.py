"""Jobs that really run here as SageMaker would run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext
from cloudtrain.plans.states import RunState
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from tests.deadlines import GRACE
from tests.targets.places import Place, Run, digits_that_wait
from tests.targets.sagemaker.test_emulate import OWN, sagemaker_request

pytestmark = pytest.mark.lifecycle

SEE = """
import json, os, sys
from pathlib import Path
train = os.environ.get("SM_CHANNEL_TRAIN")
print(json.dumps({
    "argv": sys.argv[1:], "host": os.environ["SM_CURRENT_HOST"], "hps": json.loads(os.environ["SM_HPS"]),
    "train": sorted(p.name for p in Path(train).rglob("*") if p.is_file()) if train else None,
    "config": json.loads(Path(os.environ["SM_INPUT_CONFIG_DIR"], "resourceconfig.json").read_text()),
}))
Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"] + ".pt").write_text("weights")
"""
OWN_IMAGE = {"image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"}
PYTORCH = {"framework": "pytorch", "version": "2.8"}


def emulate(place: Place, script: str | dict[str, str], *, image: bool = False, **job: Any) -> Run:
    """A job on two small hosts, started by the toolkit or, with an own image, by our launcher."""
    job.setdefault(
        "resources", {"instance_count": 2, "instance_type": {"sagemaker": "ml.m5.xlarge"}}
    )
    job.setdefault("environment", OWN_IMAGE if image else PYTORCH)
    return place.submit(
        script, target=ct.Local(emulate="sagemaker", instance_count=2, grace_period=GRACE), **job
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five files."""
    folder = tmp_path / "data" / "parts"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.csv").write_text(str(number))
    return folder.parent


@pytest.mark.torch
def test_digits_ddp_on_two_hosts(place: Place) -> None:
    """The bundled job trains on two emulated hosts, and its processes live in the environment of the launch view."""
    from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
    from cloudtrain.targets.sagemaker.launch.commands import command
    from cloudtrain.targets.sagemaker.launch.container import HostSetup, environment
    from cloudtrain.targets.sagemaker.request import hosts

    job = ct.bundled_job("digits_ddp", ["resources.instance_count=2", "hyperparameters.epochs=2"])
    target = ct.Local(emulate="sagemaker", instance_count=2, processes_per_instance=1)
    source, account = digits_that_wait(place), place.account(target)
    tree = scan(source)
    plan = place.compile(job, target, CompileContext("digits-1", tree.identity, account))
    place.service.upload(plan, tree)
    run = place.send(plan)
    run.wait_for_line("processes=2 device=cpu backend=gloo")
    seen = [run.rank_process(rank) for rank in range(2)]
    variables, commands = (
        [process.environ() for process in seen],
        [process.cmdline() for process in seen],
    )
    (run.folder / "go").touch()
    status = run.wait()
    assert status.state is RunState.SUCCEEDED, status
    assert status.metrics["test_accuracy"] > 0.5
    assert (run.folder / "hosts/algo-1/opt/ml/model/model.pt").exists()

    request = sagemaker_request(job, account)
    for host, real, argv in zip(hosts(request), variables, commands, strict=True):
        image = ImageContents("pytorch", "5.1.1", python=account.python)
        made = command(HostSetup(request, host, image, gpus=account.machine.gpus))
        expected = environment(
            HostSetup(request, host, image, gpus=account.machine.gpus, cpus=account.machine.cpus)
        )
        root = f"{run.folder}/hosts/{host.name}/opt/ml"
        # the run's name is part of the request; torchrun gives its ranks the address that they meet
        # at
        text = json.dumps(expected | made.env).replace("/opt/ml", root).replace("job-1", "digits-1")
        local = json.loads(text.replace('"eth0"', '"lo"').replace('\\"eth0\\"', '\\"lo\\"'))
        local |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": real["MASTER_PORT"]}
        code = next(upload.sha256 for upload in plan.uploads)
        bundle = local["SM_MODULE_DIR"].split("/")[-2]
        local = json.loads(json.dumps(local).replace(bundle, code))
        assert {name: real.get(name) for name in local} == local
        assert argv[1:] == list(made.program[1:])
        assert {name for name in real if name.startswith("SM_")} == {
            name for name in local if name.startswith("SM_")
        }
        assert OWN & real.keys()


@pytest.mark.parametrize("image", [False, True], ids=["toolkit", "own launcher"])
def test_hosts_find_what_sagemaker_gives_them(place: Place, data: Path, image: bool) -> None:
    """Channels with local data, whole or in shards, configuration, exact arguments, results host by host."""
    user = (
        {"name": "two words", "train": "${{inputs.train}}", "n": 3}
        if image
        else {"name": "one", "n": 3}
    )
    inputs = {"train": {"local": str(data), "shard": True}, "all": {"local": str(data)}}
    run = emulate(place, SEE, image=image, hyperparameters=user, inputs=inputs)
    assert run.wait().state is RunState.SUCCEEDED, run.status
    seen = [
        json.loads(text) for rank in range(2) for text in run.texts(rank) if text.startswith("{")
    ]
    roots = [run.folder / f"hosts/algo-{number}/opt/ml" for number in (1, 2)]
    assert [each["host"] for each in seen] == ["algo-1", "algo-2"]
    assert [each["train"] for each in seen] == [["0.csv", "2.csv", "4.csv"], ["1.csv", "3.csv"]]
    assert [each["config"]["current_host"] for each in seen] == ["algo-1", "algo-2"]
    for each, root in zip(seen, roots, strict=True):
        expected = {key: value.replace("${{inputs.train}}", f"{root}/input/data/train") if isinstance(value, str)
                    else value for key, value in user.items()}  # fmt: skip
        assert (each["hps"], each["argv"]) == (expected, argv_of(expected))
        assert (root / "input/data/all/parts/0.csv").read_text() == "0"
    copied = place.service.download(run.ref, "model/", place.root / "copy")
    assert sorted(path.name for path in copied) == ["algo-1.pt", "algo-2.pt"]


@pytest.mark.parametrize("image", [False, True], ids=["toolkit", "own launcher"])
def test_the_failure_file_is_the_reason(place: Place, image: bool) -> None:
    """What the script writes to `/opt/ml/output/failure`, as SageMaker asks it to, is the run's reason."""
    script = """
import os, sys, time
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    time.sleep(3600)
open(os.path.join(os.environ["SM_OUTPUT_DIR"], "failure"), "w").write("no such column: y\\nmore about it")
sys.exit(3)
"""
    run = emulate(place, script, image=image)
    status = run.wait()
    assert (status.state, status.reason, status.details) == (
        RunState.FAILED,
        "no such column: y",
        ("more about it",),
    )
    assert (status.failed_rank, status.exit_code) == (1, 3)
    assert run.nothing_is_left()


def test_requirements_are_left_alone(place: Place) -> None:
    """The launcher that runs for real does not install anything into this machine's interpreter."""
    files = {"train.py": "print('trained')", "needs.txt": "./no-such-folder"}
    run = emulate(place, files, image=True, environment=OWN_IMAGE | {"requirements": "needs.txt"})
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())


def test_our_launcher_says_why(place: Place) -> None:
    """A script that says nothing has its error told by the launcher, as it would become FailureReason."""
    run = emulate(place, "raise ValueError('bad data')", image=True)
    status = run.wait()
    assert status.reason == "process failed with exit code 1: ValueError: bad data"
    assert status.details[-1] == "ValueError: bad data"


@pytest.mark.slow
@pytest.mark.parametrize("image", [False, True], ids=["toolkit", "own launcher"])
def test_stop_lets_the_script_save(place: Place, image: bool) -> None:
    """A stop reaches every host's script, which saves into the folder that stands for the checkpoint's S3 prefix."""
    kept = place.root / "kept"
    script = """
import time
from cloudtrain import runtime
runtime.watch_for_stop()
print("ready", flush=True)
while not runtime.should_stop():
    time.sleep(0.02)
(runtime.checkpoint_dir() / runtime.model_dir().parts[-4]).write_text("saved")
"""
    run = emulate(place, script, image=image, checkpoint={"local": str(kept)})
    run.wait_for_line("ready", times=2)
    place.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    assert sorted(path.name for path in kept.iterdir()) == ["algo-1", "algo-2"]
    assert run.nothing_is_left()


UP = """
import os, time
from pathlib import Path
def is_up(name):
    Path(os.environ["CLOUDTRAIN_RUN_DIR"], f"up-{name}").touch()
def wait_for(count):
    while len(list(Path(os.environ["CLOUDTRAIN_RUN_DIR"]).glob("up-*"))) < count:
        time.sleep(0.02)
"""
"""`up.py`: tasks say that they are there, and one waits until so many have said it."""

FAKE_TENSORFLOW = """
import json, os, time, up
from types import SimpleNamespace
class Server:
    def __init__(self, cluster, job_name, task_index, config):
        print("server", job_name, task_index, len(cluster["ps"]), config, flush=True)
        up.is_up(f"ps-{task_index}")
    def join(self):
        time.sleep(3600)
compat = SimpleNamespace(v1=SimpleNamespace(ConfigProto=lambda device_count: device_count))
train = SimpleNamespace(ClusterSpec=lambda cluster: cluster)
distribute = SimpleNamespace(Server=Server)
"""


def test_parameter_servers_end_with_the_master(place: Place) -> None:
    """The toolkit's servers start beside the tasks of every host, and are ended when the master has succeeded."""
    script = """
import json, os, time, up
task = json.loads(os.environ["TF_CONFIG"])["task"]
os.write(1, f"task {task['type']} {task['index']}\\n".encode())  # one write, which no other process interrupts
up.is_up(task["type"])
if task["type"] == "worker":
    time.sleep(3600)
up.wait_for(4)
"""
    run = emulate(
        place,
        {"train.py": script, "tensorflow.py": FAKE_TENSORFLOW, "up.py": UP},
        distribution=ct.TensorFlow(strategy="parameter_server"),
        environment={"framework": "tensorflow", "version": "2.19"},
    )
    assert run.wait().state is RunState.SUCCEEDED, run.status
    assert [run.texts(rank) for rank in range(4)] == [
        ["task master 0"], ["task worker 0"], ["server ps 0 2 {'GPU': 0}"], ["server ps 1 2 {'GPU': 0}"],
    ]  # fmt: skip
    assert run.nothing_is_left()


@pytest.mark.slow
def test_the_chiefs_end_reaches_other_hosts(place: Place) -> None:
    """Our launchers of two hosts talk over loopback: when the chief has succeeded, the worker elsewhere is ended."""
    script = """
import json, os, time, up
task = json.loads(os.environ["TF_CONFIG"])["task"]
os.write(1, f"task {task['type']} {task['index']}\\n".encode())  # one write, which no other process interrupts
up.is_up(task["type"])
if task["type"] != "chief":
    time.sleep(3600)
up.wait_for(3)
"""
    run = emulate(
        place,
        {"train.py": script, "up.py": UP},
        image=True,
        distribution=ct.TensorFlow(strategy="parameter_server"),
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    assert sorted(text for text in run.texts() if text.startswith("task")) == [
        "task chief 0",
        "task ps 0",
        "task worker 0",
    ]
    assert run.nothing_is_left()


MPI4PY = {
    "mpi4py/__init__.py": "",
    "mpi4py/__main__.py": "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0])",
}
"""What SageMaker's toolkit starts scripts through."""


@pytest.mark.mpi
@pytest.mark.parametrize("options", ["", "-bind-to core -x SEEN=1 -x SEEN=2 -x NCCL_DEBUG=WARN"])
def test_mpirun_of_the_toolkit(place: Place, options: str) -> None:
    """The toolkit's own mpirun line works here: all ranks on this machine, each with its own log, the job's options."""
    script = "import os\nprint('rank', *map(os.environ.get, ['OMPI_COMM_WORLD_RANK', 'SM_CURRENT_HOST', 'SEEN']))"
    run = emulate(place, {"train.py": script, **MPI4PY}, distribution=ct.MPI(options=options))
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    seen = 2 if options else None
    assert [run.texts(rank) for rank in range(2)] == [
        [f"rank 0 algo-1 {seen}"],
        [f"rank 1 algo-1 {seen}"],
    ]


@pytest.mark.mpi
def test_mpirun_failure_names_the_rank(place: Place) -> None:
    """The rank that failed is told, with its error."""
    script = "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': raise KeyError('mine')\ntime.sleep(3600)"
    status = emulate(place, {"train.py": script, **MPI4PY}, distribution=ct.MPI()).wait()
    assert status.state is RunState.FAILED
    assert status.reason == "rank 1 (instance 0) failed with exit code 1: KeyError: 'mine'"


@pytest.mark.mpi
def test_mpirun_of_our_launcher(place: Place) -> None:
    """In an image of the user's, our launcher finds the mpirun beside the interpreter, whatever the PATH is."""
    place.environ["PATH"] = "/usr/bin:/bin"
    script = "import os\nos.write(1, 'rank {OMPI_COMM_WORLD_RANK} {SM_CURRENT_HOST}\\n'.format(**os.environ).encode())"
    resources = {"instance_count": 1, "instance_type": {"sagemaker": "ml.m5.xlarge"}}
    target = ct.Local(emulate="sagemaker", instance_count=1, processes_per_instance=2)
    run = place.submit(
        script, target=target, environment=OWN_IMAGE, resources=resources, distribution=ct.MPI()
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    assert sorted(text for text in run.texts() if text.startswith("rank")) == [
        "rank 0 algo-1",
        "rank 1 algo-1",
    ]


@pytest.mark.torch
def test_a_torch_failure_under_our_launcher(place: Place) -> None:
    """The failed rank's own error is in the failure file, and from there in the status."""
    script = (
        "import os, time\nif os.environ['RANK'] == '1': raise KeyError('mine')\ntime.sleep(3600)"
    )
    run = emulate(place, script, image=True, distribution=ct.Torch(processes_per_instance=1))
    status = run.wait()
    assert (status.reason, status.failed_rank) == (
        "rank 1 failed with exit code 1: KeyError: 'mine'",
        1,
    )
    assert run.nothing_is_left()
