"""The process group: which backend is taken, and what every process learns from it."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runtime import SetupError, destroy_process_group, process_group, should_stop
from cloudtrain.runtime.process_group import NCCL, _gloo_beside, choose_backend
from tests.deadlines import DEADLINE

REPOSITORY = Path(cloudtrain.__file__).parents[1]


@pytest.fixture
def with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that is built with nccl."""
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


@pytest.fixture
def with_smddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """SageMaker's library, importable."""
    for name in ("smdistributed", "smdistributed.dataparallel", "smdistributed.dataparallel.torch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, process_group.SMDDP_MODULE, types.ModuleType("torch_smddp"))


@pytest.mark.torch
@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(
    ("asked", "gpus", "folded", "chosen"),
    [
        ("auto", 0, False, "gloo"),
        ("auto", 8, False, NCCL),
        ("auto", 1, True, "gloo"),
        ("nccl", 1, False, NCCL),
        ("gloo", 8, False, "gloo"),
        ("gloo", 1, True, "gloo"),
        ("cpu:gloo,cuda:nccl", 1, False, NCCL),
    ],
)
def test_the_backend_that_fits_is_taken(asked: str, gpus: int, folded: bool, chosen: str) -> None:
    """`auto` falls back; a name is kept."""
    assert choose_backend(asked, gpus=gpus, folded=folded, alone=False) == chosen


@pytest.mark.torch
@pytest.mark.usefixtures("with_nccl", "with_smddp")
def test_smddp_is_taken_where_its_library_is_and_it_can_help() -> None:
    """It needs GPUs of its own and more than one process."""
    assert choose_backend("auto", gpus=8, folded=False, alone=False) == "smddp"
    assert choose_backend("auto", gpus=8, folded=False, alone=True) == NCCL
    assert choose_backend("auto", gpus=0, folded=False, alone=False) == "gloo"
    assert choose_backend("auto", gpus=8, folded=False, alone=False, sends=True) == NCCL


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "gpus", "folded", "why"),
    [
        ("nccl", 0, False, "sees no GPU"),
        ("nccl", 1, True, "share one GPU"),
        ("smddp", 0, False, "sees no GPU"),
        ("smddp", 8, False, "`smdistributed.dataparallel` is not installed"),
        ("glo", 0, False, "`glo` is not a backend"),
        ("cpu:gloo,cuda:nkkl", 0, False, "`nkkl` is not a backend"),
    ],
)
def test_a_backend_that_cannot_run_is_a_clear_error(
    asked: str, gpus: int, folded: bool, why: str
) -> None:
    """What was asked for by name is never replaced in silence."""
    with pytest.raises(SetupError, match=why) as caught:
        choose_backend(asked, gpus=gpus, folded=folded, alone=False)
    assert caught.value.hint is not None


@pytest.mark.torch
@pytest.mark.usefixtures("with_nccl")
def test_a_library_that_does_not_load_is_told_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """smddp refuses some instance types with a RuntimeError; `auto` goes on with nccl."""
    broken = tmp_path / "smdistributed" / "dataparallel" / "torch"
    broken.mkdir(parents=True)
    (broken / "torch_smddp.py").write_text("raise RuntimeError('not on this instance type')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert choose_backend("auto", gpus=8, folded=False, alone=False) == NCCL
    assert (
        "smddp is installed but does not load: not on this instance type" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_without_a_group_the_functions_answer_for_one_process() -> None:
    """A script without torch can use the same calls."""
    assert should_stop() is False
    destroy_process_group()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["nccl", "smddp"])
def test_agreeing_on_a_stop_does_not_wait_for_the_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The vote of a group that handles only GPUs goes through a gloo group beside it, which is made once."""
    import torch.distributed as dist

    made, votes = [], []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda: name)
    monkeypatch.setattr(dist, "new_group", lambda backend: made.append(backend) or "beside")
    monkeypatch.setattr(
        dist, "all_reduce", lambda vote, op, group: votes.append((vote.device.type, group))
    )
    _gloo_beside.cache_clear()
    assert (should_stop(), should_stop()) == (False, False)
    assert made == ["gloo"]
    assert votes == [("cpu", "beside")] * 2
    _gloo_beside.cache_clear()


TIMEOUT = """
from cloudtrain import runtime
import torch.distributed as dist

usual = dist.init_process_group
dist.init_process_group = lambda *_, **named: print(named["timeout"].total_seconds()) or usual(*_, **named)
runtime.init_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("variables", "seconds"), [({}, "1800.0"), ({"CLOUDTRAIN_TIMEOUT": "77"}, "77.0")]
)
def test_collectives_have_a_timeout(
    tmp_path: Path, variables: dict[str, str], seconds: str
) -> None:
    """Half an hour unless a variable says otherwise."""
    found = subprocess.run(
        [sys.executable, "-c", TIMEOUT],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(REPOSITORY),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (found.returncode, found.stdout.strip()) == (0, seconds), found.stderr


LATE = """
import ctypes, threading, time
from cloudtrain import runtime

group = runtime.init_process_group("gloo")
done = []

def run():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
    done.append(time.monotonic())
    threading.Event().wait(60)

threading.Thread(target=run, daemon=True).start()
time.sleep(0.01)
runtime.destroy_process_group()
print(group.world_size, len(done))
"""


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the state of a thread")
def test_one_process_waits_for_a_late_thread_of_gloo(tmp_path: Path) -> None:
    """A thread that still works when the interpreter ends would abort the process after its training was done."""
    (tmp_path / "script.py").write_text(LATE)
    found = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "1 1\n"), found.stderr


SCRIPT = """
import json, os, pathlib, signal
from cloudtrain import runtime

group = runtime.init_process_group(timeout=600)
checkpoints = runtime.Checkpoints("ck")
runtime.watch_for_stop()
before = runtime.should_stop()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGTERM)
stop = runtime.should_stop()
for step in (1, 2):
    checkpoints.save_sharded(lambda folder: (folder / f"rank{group.rank}").write_text(f"{step}"), step)
agreed = checkpoints.agree()
files = sorted(path.name for path in agreed.path.iterdir())
pathlib.Path(f"rank{group.rank}.json").write_text(
    json.dumps([group.rank, group.world_size, group.backend, group.device.type, before, stop, agreed.step, files])
)
runtime.destroy_process_group()
"""


@pytest.mark.torch
def test_two_ranks_agree_on_stopping_and_on_checkpoints(tmp_path: Path) -> None:
    """One rank's signal stops both; both write their part of a sharded save and find the same checkpoint."""
    import json

    (tmp_path / "script.py").write_text(SCRIPT)
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "script.py",
        ],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert found.returncode == 0, found.stderr
    answers = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    shared = [2, "gloo", "cpu", False, True, 2, ["checkpoint.json", "rank0", "rank1"]]
    assert answers == [[0, *shared], [1, *shared]]


@pytest.mark.torch
def test_several_instances_without_a_master_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain mpirun over machines says nothing of rank 0, and waiting for it would hang."""
    from cloudtrain.runtime import init_process_group

    for name, value in {"RANK": "4", "SIZE": "8", "LOCAL_RANK": "0", "LOCAL_SIZE": "4"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(SetupError, match="the address of rank 0 is unknown") as caught:
        init_process_group()
    assert "MASTER_ADDR" in str(caught.value)
