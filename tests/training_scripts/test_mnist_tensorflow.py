"""The TensorFlow script: its data and its cluster as plain functions; and run for real where TensorFlow is installed.

TensorFlow is not in the project's own environment. `make test-scripts` makes one that has it, and names its
interpreter in `CLOUDTRAIN_TENSORFLOW_PYTHON`:

    python tools/run/training_scripts.py tensorflow
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from cloudtrain import TrainingJob
from cloudtrain.runtime import SetupError, parse_metrics
from tests.deadlines import DEADLINE
from tests.ports import free_ports
from tests.training_scripts.runs import REPOSITORY, Edit, check_out, plant

FOLDER = REPOSITORY / "training_scripts" / "mnist_tensorflow"
PYTHON = os.environ.get("CLOUDTRAIN_TENSORFLOW_PYTHON", sys.executable)
NOISE = 2e-6


def has_tensorflow() -> bool:
    """Asked of the interpreter that would run it, without importing it."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    return subprocess.run([PYTHON, "-c", ask], check=False).returncode == 0


needs_tensorflow = pytest.mark.skipif(
    not has_tensorflow(),
    reason="TensorFlow is not installed: set CLOUDTRAIN_TENSORFLOW_PYTHON to a Python that has it",
)


def module(name: str) -> ModuleType:
    """A file beside the script, without the script."""
    if name == "mnist":
        pytest.importorskip("numpy")
        pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location(f"mnist_tensorflow_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


# The cluster


CLUSTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a job without servers": ({"worker": ["a:1", "b:1"]}, {"worker": ["a:1", "b:1"]}),
    "Azure ML, mirrored": ({"worker": ["a:1", "b:1"], "ps": []}, {"worker": ["a:1", "b:1"]}),
    "Azure ML, servers": (
        {"ps": ["s:1"], "worker": ["a:1", "b:1"]}, {"chief": ["a:1"], "worker": ["b:1"], "ps": ["s:1"]},
    ),
    "SageMaker, servers": (
        {"master": ["a:1"], "ps": ["a:2", "b:2"], "worker": ["b:1"]},
        {"chief": ["a:1"], "ps": ["a:2", "b:2"], "worker": ["b:1"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("written", "found"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_cluster_has_one_form(
    written: dict[str, Any], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote TF_CONFIG: every task finds its own address under its new name, and TensorFlow reads the same."""
    cluster = module("cluster")
    for role, places in written.items():
        for index, place in enumerate(places):
            text = json.dumps(
                {"cluster": written, "task": {"type": role, "index": index}, "environment": "cloud"}
            )
            monkeypatch.setenv("TF_CONFIG", text)
            config = cluster.join_cluster()
            assert config["cluster"] == found
            assert found[config["task"]["type"]][config["task"]["index"]] == place
            assert json.loads(os.environ["TF_CONFIG"]) == config


def test_nobody_set_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process alone has a cluster without tasks, and TensorFlow still finds no TF_CONFIG."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert module("cluster").join_cluster()["cluster"] == {}
    assert "TF_CONFIG" not in os.environ


def test_a_server_waits_for_the_chief_and_leaves_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`answers` follows a socket that opens and closes; nobody listens behind a name that nobody knows."""
    cluster = module("cluster")
    with socket.create_server(("127.0.0.1", 0)) as chief:
        address = f"127.0.0.1:{chief.getsockname()[1]}"
        assert cluster.answers(address)
        cluster.wait_for(address)
    assert not cluster.answers(address)


@pytest.mark.slow
def test_a_server_whose_chief_does_not_come_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Had it left with success, a late chief would wait for it for ever."""
    cluster = module("cluster")
    monkeypatch.setattr(cluster, "PATIENCE", 0.0)
    no_server = SimpleNamespace(distribute=SimpleNamespace(Server=lambda *_, **__: None))
    monkeypatch.setitem(sys.modules, "tensorflow", no_server)
    (port,) = free_ports(1)
    with pytest.raises(SetupError, match=f"no chief at `127.0.0.1:{port}` after 0 s"):
        cluster.serve(
            {"cluster": {"chief": [f"127.0.0.1:{port}"]}, "task": {"type": "ps", "index": 0}}
        )


def test_a_server_that_is_to_stop_leaves_without_a_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop before the chief came is no failure."""
    cluster = module("cluster")
    monkeypatch.setattr(cluster.runtime, "should_stop", lambda: True)
    (port,) = free_ports(1)
    assert cluster.wait_for(f"127.0.0.1:{port}") is None


# The data


def write_idx(path: Path, array: Any) -> None:
    """The array in MNIST's format, gzipped where the name says so."""
    header = bytes((0, 0, 8, array.ndim)) + b"".join(
        length.to_bytes(4, "big") for length in array.shape
    )
    data = header + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(folder: Path, layout: str) -> Any:
    """The digits as files of MNIST: four idx files or an archive. Returns what was written."""
    np = pytest.importorskip("numpy")
    digits = module("mnist").read_digits()
    arrays = {
        "x_train": digits.train.pixels[..., 0] * 15, "y_train": digits.train.labels,
        "x_test": digits.test.pixels[..., 0] * 15, "y_test": digits.test.labels,
    }  # fmt: skip
    folder.mkdir(parents=True)
    if layout == "npz":
        np.savez(folder / "mnist.npz", **arrays)
        return arrays
    dot, ending = (".", "") if layout == "dots" else ("-", ".gz")
    for name, array in arrays.items():
        kind, _, part = name.partition("_")
        what = "images-idx3" if kind == "x" else "labels-idx1"
        what = what.replace("-idx", f"{dot}idx")
        write_idx(folder / f"{'train' if part == 'train' else 't10k'}-{what}-ubyte{ending}", array)
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["idx", "dots", "npz"])
@pytest.mark.slow
def test_mnist_is_read_in_its_layouts(tmp_path: Path, layout: str) -> None:
    """Every pixel and label comes back, from idx files with either spelling, gzipped or not, and from the archive."""
    written = write_mnist(tmp_path / "data", layout)
    found = module("mnist").read_mnist(tmp_path / "data")
    assert (found.train.pixels[..., 0] == written["x_train"]).all()
    assert (found.train.labels == written["y_train"]).all()
    assert (found.test.pixels[..., 0] == written["x_test"]).all()
    assert (found.test.labels == written["y_test"]).all()
    assert found.white == 255


@pytest.mark.slow
def test_the_digits_are_all_there() -> None:
    """1,797 scans in two sets that share none, all ten digits in both."""
    digits = module("mnist").read_digits()
    assert (len(digits.train.labels), len(digits.test.labels)) == (1438, 359)
    assert digits.train.pixels.shape[1:] == (8, 8, 1)
    assert digits.train.pixels.max() == digits.white
    assert set(digits.train.labels) == set(digits.test.labels) == set(range(10))


def broken_files(folder: Path) -> Iterator[str]:
    """Breaks one thing after the other in a folder with idx files; yields what should be said."""
    images = folder / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    yield "is cut off"
    images.write_bytes(whole[:-100])
    yield "cannot be read: Compressed file ended"
    images.write_bytes(whole[:1000] + bytes(1000) + whole[2000:])
    yield "cannot be read: "
    images.write_bytes(whole[:-8] + bytes(8))
    yield "cannot be read: CRC check failed"
    images.write_bytes(b"\x00\x00\x0d\x03" + bytes(12))
    yield "is not an idx file of bytes with 3 axes"
    images.write_bytes(whole)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:8] + b"\x0a" * 359))
    yield "there are labels from 10 to 10"
    labels.unlink()
    yield "has no `t10k-labels-idx1-ubyte.gz`"
    (folder / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    yield "is not MNIST"


def broken_archives(folder: Path) -> Iterator[str]:
    """The same for `mnist.npz`: damaged inside, and with labels that are no whole numbers."""
    np = pytest.importorskip("numpy")
    arrays = write_mnist(folder, "npz")
    archive = folder / "mnist.npz"
    np.savez_compressed(archive, **arrays)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:1000] + b"\xff" * 1000 + whole[2000:])
    yield "is not MNIST: Error -3"
    np.savez(archive, **{**arrays, "y_test": arrays["y_test"] + 0.5})
    yield "labels are float64"


@pytest.mark.slow
def test_what_is_not_mnist_is_said(tmp_path: Path) -> None:
    """A file that is cut off, of another type, with other labels, or missing ends the run with its name."""
    write_mnist(tmp_path / "data", "idx")
    mnist = module("mnist")
    for said in broken_files(tmp_path / "data"):
        with pytest.raises(SetupError, match=re.escape(said)):
            mnist.read_mnist(tmp_path / "data")
    for said in broken_archives(tmp_path / "archive"):
        with pytest.raises(SetupError, match=re.escape(said)):
            mnist.read_mnist(tmp_path / "archive")


def test_the_job_files_are_the_two_strategies() -> None:
    """One script, two jobs; nothing but the strategy and the machines differs."""
    jobs = [
        TrainingJob(**yaml.safe_load((FOLDER / name).read_text("utf-8")))
        for name in ("job.yaml", "job_ps.yaml")
    ]
    strategies = [getattr(job.distribution, "strategy", None) for job in jobs]
    assert strategies == ["multi_worker_mirrored", "parameter_server"]
    assert jobs[0].hyperparameters == jobs[1].hyperparameters
    assert jobs[0].environment == jobs[1].environment


# Runs


@dataclass
class Run:
    """What came out of a run: the chief's lines, and how every task ended."""

    losses: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    exit_codes: dict[str, int] = field(default_factory=dict)
    errors: str = ""

    def read(self, text: str) -> None:
        """The lines of the process that reports."""
        self.lines = text.splitlines()
        for values in filter(None, map(parse_metrics, self.lines)):
            for name, kept in (("loss", self.losses), ("test_accuracy", self.accuracies)):
                if name in values:
                    kept[int(values["step"])] = values[name]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("mnist_tensorflow", tmp_path_factory.mktemp("checkout"))


def tasks(workers: int, servers: int) -> list[tuple[str, int]]:
    """Workers in step; with servers the first worker is the chief. Without workers, one process alone."""
    if not servers:
        return [("worker", index) for index in range(workers)]
    workers_behind = [("worker", index) for index in range(workers - 1)]
    return [("chief", 0), *workers_behind, *(("ps", index) for index in range(servers))]


def start(folder: Path, script: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """One task in `folder`, with its output in `NAME.out` and `NAME.err`."""
    task = json.loads(variables.get("TF_CONFIG", '{"task": {"type": "alone", "index": 0}}'))["task"]
    name = f"{task['type']}{task['index']}"
    plain = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / f"{name}.out").open("w") as output, (folder / f"{name}.err").open("w") as errors:
        return subprocess.Popen(
            [PYTHON, str(script), *arguments], cwd=folder, env={**plain, **variables},
            text=True, stdout=output, stderr=errors,
        )  # fmt: skip


def run(
    folder: Path, script: Path, *arguments: str, workers: int = 0, servers: int = 0, signal_at: int | None = None,
    with_signal: int = signal.SIGTERM, **variables: str,
) -> Run:  # fmt: skip
    """All tasks to their end. With `signal_at`, every task gets the signal once that step is reported."""
    folder.mkdir(exist_ok=True)
    cluster: dict[str, list[str]] = {}
    all_tasks = tasks(workers, servers)
    for (kind, _), port in zip(all_tasks, free_ports(len(all_tasks)), strict=True):
        cluster.setdefault(kind, []).append(f"127.0.0.1:{port}")
    configs = [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}
        for kind, index in all_tasks
    ]
    started = [
        start(folder, script, *arguments, **config, **variables) for config in configs or [{}]
    ]
    names = [f"{kind}{index}" for kind, index in all_tasks] or ["alone0"]
    result, deadline = Run(), time.monotonic() + DEADLINE
    while any(process.poll() is None for process in started):
        result.read((folder / f"{names[0]}.out").read_text())
        if signal_at is not None and max(result.losses, default=0) >= signal_at:
            for process in started:
                process.send_signal(with_signal)
            signal_at = None
        if time.monotonic() > deadline:
            for process in started:
                process.kill()
        time.sleep(0.02)
    result.read((folder / f"{names[0]}.out").read_text())
    result.exit_codes = {name: process.wait() for name, process in zip(names, started, strict=True)}
    result.errors = "\n".join(f"{name}: {(folder / f'{name}.err').read_text()}" for name in names)
    return result


def assert_succeeded(found: Run) -> None:
    """Every task ended with 0."""
    assert set(found.exit_codes.values()) == {0}, (found.exit_codes, found.errors)


def assert_same_losses(
    found: dict[int, float], expected: dict[int, float], *, at_least: int
) -> None:
    """Every loss that both report is equal but for the noise of adding up in another order."""
    common = sorted(set(found) & set(expected))
    assert len(common) >= at_least
    for step in common:
        assert found[step] == pytest.approx(expected[step], abs=NOISE, rel=NOISE), f"step {step}"


@pytest.fixture(scope="module")
def alone(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, never interrupted: what all runs in step are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    found = run(folder, script)
    assert_succeeded(found)
    assert (folder / "model" / "model.keras").is_file()
    return found


@needs_tensorflow
@pytest.mark.torch
def test_one_process_learns_the_digits(alone: Run) -> None:
    """At least 95% of the test scans are read right, and the last line says how many."""
    assert len(alone.accuracies) == 10
    assert alone.accuracies[230] >= 0.95
    assert alone.lines[-1].startswith(f"test accuracy {alone.accuracies[230]:.4f} after 230 steps")
    assert alone.losses[10] > 1.0 > 0.2 > alone.losses[230]
    assert sum(" total=230 " in line for line in alone.lines) == len(alone.losses)


@needs_tensorflow
@pytest.mark.torch
def test_run_once_more_it_says_the_same(script: Path, tmp_path: Path) -> None:
    """Resumed at its last step nothing is left to train, and what was learned is tested again."""
    first, second = (run(tmp_path, script, "--epochs", "1") for _ in range(2))
    assert_succeeded(second)
    assert "resumed from step 23" in second.errors
    assert second.losses == {}
    assert (
        second.lines[-1].split(",")[0]
        == first.lines[-1].split(",")[0]
        != "test accuracy 0.0000 after 23 steps"
    )


STOPPED_EARLY = """
import json, os, runpy, signal, sys

if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    from cloudtrain import runtime
    watch = runtime.watch_for_stop
    runtime.watch_for_stop = lambda: (watch(), os.kill(os.getpid(), signal.SIGTERM))
runpy.run_path({script!r}, run_name="__main__")
"""


@needs_tensorflow
@pytest.mark.torch
def test_a_chief_that_is_stopped_before_its_first_step_leaves_well(
    script: Path, tmp_path: Path
) -> None:
    """It saves what there is, leaves the marker, and all end with 0."""
    early = tmp_path / "early.py"
    early.write_text(STOPPED_EARLY.format(script=str(script)))
    paths = os.pathsep.join([str(script.parent), str(script.parents[2])])
    found = run(tmp_path / "run", early, workers=2, servers=1, PYTHONPATH=paths)
    assert_succeeded(found)
    assert json.loads((tmp_path / "run" / "checkpoint" / "preempted").read_text())["step"] == 0
    assert found.losses == {}


@needs_tensorflow
@pytest.mark.torch
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_in_step_learn_the_same(
    script: Path, alone: Run, tmp_path: Path, workers: int
) -> None:
    """MultiWorkerMirroredStrategy with one and with two workers: the losses of one process, and as many reports."""
    found = run(tmp_path, script, workers=workers)
    assert_succeeded(found)
    assert found.lines[0] == f"strategy=multi_worker_mirrored replicas_in_step={workers}"
    assert_same_losses(found.losses, alone.losses, at_least=23)
    assert found.accuracies == pytest.approx(alone.accuracies)
    assert len(found.lines) == len(alone.lines)


FAULTS: dict[str, Edit] = {
    "factor": ("train.py", "zip(gradients, network", "zip([2 * each for each in gradients], network"),
    "missing": ("train.py", "    optimizer.build(network", "    optimizer._all_reduce_sum_gradients = list\n"
                "    optimizer.build(network"),
    "shard": ("train.py", "mine = rows[number::count]", "mine = rows[0::count]"),
}  # fmt: skip


@needs_tensorflow
@pytest.mark.torch
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(alone: Run, tmp_path: Path, fault: str) -> None:
    """Gradients doubled, not exchanged, or of a share taken twice: losses say so, because plain momentum, unlike Adam,
    hides no factor."""
    script = check_out("mnist_tensorflow", tmp_path / "checkout")
    plant(script, FAULTS[fault])
    found = run(tmp_path / "run", script, workers=2)
    assert_succeeded(found)
    with pytest.raises(AssertionError, match="step 10"):
        assert_same_losses(found.losses, alone.losses, at_least=23)


@needs_tensorflow
@pytest.mark.torch
def test_stopped_with_two_workers_it_goes_on_with_one_process(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """SIGTERM to both: they agree on the step, save, leave with 0; one process has the losses of one run."""
    first = run(tmp_path, script, "--step_delay", "0.02", workers=2, signal_at=60)
    assert_succeeded(first)
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 60 <= stopped_at < 230
    second = run(tmp_path, script)
    assert_succeeded(second)
    assert f"resumed from step {stopped_at}" in second.errors
    assert min(second.losses) > stopped_at
    assert not (tmp_path / "checkpoint" / "preempted").exists()
    assert_same_losses({**first.losses, **second.losses}, alone.losses, at_least=23)


@needs_tensorflow
@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_drops_what_one_run_drops(tmp_path: Path, workers: int) -> None:
    """With a layer of dropout, planted: the losses of a run that was never stopped."""
    script = check_out("mnist_tensorflow", tmp_path / "checkout")
    plant(
        script,
        (
            "train.py",
            "            keras.layers.Dense(10),",
            "keras.layers.Dropout(0.3), keras.layers.Dense(10),",
        ),
    )
    arguments = ("--epochs", "2", "--report_every", "1")
    whole = run(tmp_path / "whole", script, *arguments, workers=workers)
    parts = tmp_path / "parts"
    first = run(parts, script, *arguments, "--step_delay", "0.05", workers=workers, signal_at=15)
    second = run(parts, script, *arguments, workers=workers)
    for each in (whole, first, second):
        assert_succeeded(each)
    assert min(second.losses) == max(first.losses) + 1
    assert_same_losses({**first.losses, **second.losses}, whole.losses, at_least=46)


@needs_tensorflow
@pytest.mark.torch
def test_killed_it_goes_on_from_the_last_checkpoint(
    script: Path, alone: Run, tmp_path: Path
) -> None:
    """`kill -9` while steps are saved one after the other: what the next run finds is whole."""
    arguments = ("--checkpoint_every", "1", "--report_every", "1", "--epochs", "10")
    first = run(tmp_path, script, *arguments, signal_at=40, with_signal=signal.SIGKILL)
    assert set(first.exit_codes.values()) == {-signal.SIGKILL}
    second = run(tmp_path, script)
    assert_succeeded(second)
    resumed = re.search(r"resumed from step (\d+)", second.errors)
    assert resumed is not None
    assert 39 <= int(resumed[1]) <= max(first.losses) + 1
    assert_same_losses(second.losses, alone.losses, at_least=15)


@needs_tensorflow
@pytest.mark.torch
def test_a_chief_two_workers_and_a_server(script: Path, tmp_path: Path) -> None:
    """ParameterServerStrategy: stopped after a while, everybody leaves with 0; resumed, it learns the digits, and the
    server and the workers end with the chief."""
    first = run(tmp_path, script, "--step_delay", "0.02", workers=3, servers=1, signal_at=46)
    assert_succeeded(first)
    stopped_at = json.loads((tmp_path / "checkpoint" / "preempted").read_text())["step"]
    assert 46 <= stopped_at < 230
    second = run(tmp_path, script, workers=3, servers=1)
    assert_succeeded(second)
    assert second.lines[0].startswith("strategy=parameter_server")
    assert f"resumed from step {stopped_at}" in second.errors
    assert min(second.losses) > stopped_at
    assert second.accuracies[230] >= 0.93
    assert (tmp_path / "model" / "model.keras").is_file()


@needs_tensorflow
@pytest.mark.torch
def test_mnist_is_trained_on_when_it_is_given(script: Path, tmp_path: Path) -> None:
    """Files in MNIST's format in the input `mnist` are what is learned, and nothing is said about digits."""
    write_mnist(tmp_path / "given", "idx")
    found = run(
        tmp_path / "run", script, "--epochs", "3", CLOUDTRAIN_INPUT_MNIST=str(tmp_path / "given")
    )
    assert_succeeded(found)
    assert "no input `mnist`" not in found.errors
    assert found.accuracies[69] >= 0.8


# Under cloudtrain


def cloudtrain(folder: Path, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    folder.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CLOUDTRAIN_STATE_DIR": str(folder / "state"),
    }
    command = [sys.executable, "-m", "cloudtrain", *arguments, "--python", PYTHON]
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, check=False, timeout=DEADLINE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs_tensorflow
@pytest.mark.torch
@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
@pytest.mark.parametrize(("name", "lowest"), [("job.yaml", 0.85), ("job_ps.yaml", 0.7)])
def test_it_runs_as_the_services_would_run_it(
    tmp_path: Path, name: str, lowest: float, service: str
) -> None:
    """With the TF_CONFIG of each: `master` and servers that the toolkit starts, `ps: []`, servers without a chief."""
    # there the server needs one of its own
    instances = "3" if (name, service) == ("job_ps.yaml", "azureml") else "2"
    arguments = ("submit", str(FOLDER / name), "--emulate", service, "--instances", instances)
    output = cloudtrain(tmp_path, *arguments, "--set", "hyperparameters.epochs=4")
    found = re.search(r"test accuracy (\d\.\d+) after 92 steps", output)
    assert found is not None, output
    assert float(found[1]) >= lowest


@needs_tensorflow
@pytest.mark.torch
def test_a_rehearsed_preemption_changes_nothing(tmp_path: Path) -> None:
    """Two workers on the local target, whole, and stopped at a step and resumed: the losses are the same."""
    job = str(FOLDER / "job.yaml")
    output = cloudtrain(
        tmp_path, "rehearse", job, "--instances", "2", "--set", "hyperparameters.epochs=3"
    )
    assert "same: " in output
