"""The state folder and what cloudtrain writes there are closed to other users, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import CloudtrainError, TargetError
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import STORE_FILE
from tests.deadlines import DEADLINE

SOMEBODY = 54321
"""A user that this machine does not know."""

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")

WRITES = """\
import os
from pathlib import Path
from cloudtrain import runtime
(runtime.model_dir() / "weights.pt").write_text("w")
(runtime.model_dir() / "more").mkdir()
Path("beside.txt").write_text("b")
print("mask", oct(os.umask(0)))
"""


@pytest.fixture(params=[0o000, 0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The user's umask, from the most open to the most careful."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a path."""
    return stat.S_IMODE(path.lstat().st_mode)


def submit(make_source: Callable[..., Path], **job: object) -> ct.Run:
    """A local run of a script that writes files, to its end."""
    source = make_source({"train.py": WRITES, "tool.sh": "echo"})
    (source / "tool.sh").chmod(0o755)
    fields = {"environment": {"variables": {"TOKEN": "secret"}}} | job
    run = ct.submit(
        ct.TrainingJob(name="private", source_dir=str(source), entry_point="train.py", **fields)
    )
    assert run.wait(DEADLINE).state is RunState.SUCCEEDED
    return run


@pytest.mark.lifecycle
def test_all_that_cloudtrain_writes_is_private(
    make_source: Callable[..., Path], state_dir: Path, umask: int, tmp_path: Path
) -> None:
    """Store, bundle, specification, status, journal, logs, code and folders; a script keeps the user's umask, and what
    it writes lies behind closed folders."""
    outside = tmp_path / "elsewhere" / "checkpoint"
    run = submit(make_source, checkpoint={"local": str(outside)})
    assert run.directory is not None
    by_the_script = {run.directory / "model/weights.pt": 0o666, run.directory / "model/more": 0o777}
    by_the_script[run.directory / "code/beside.txt"] = 0o666
    for path in (state_dir, *state_dir.rglob("*")):
        if path in by_the_script:
            assert mode(path) == by_the_script[path] & ~umask, path
        elif not path.is_symlink() and "__pycache__" not in path.parts:
            assert mode(path) & 0o077 == 0, path
    assert [line.text for line in run.logs()] == [f"mask {oct(umask)}"]
    assert mode(run.directory / "code/tool.sh") == 0o700
    assert mode(outside) == 0o777 & ~umask


@pytest.mark.slow
@pytest.mark.lifecycle
def test_an_open_state_folder_is_closed_and_that_is_said_once(
    make_source: Callable[..., Path], state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that an earlier version has left open, with its store; the second time, there is nothing to say."""
    submit(make_source)
    state_dir.chmod(0o755)
    (state_dir / STORE_FILE).chmod(0o644)
    capfd.readouterr()
    with open_store(state_dir):
        pass
    assert (mode(state_dir), mode(state_dir / STORE_FILE)) == (0o700, 0o600)
    assert f"closed `{state_dir}` to other users" in capfd.readouterr().err
    submit(make_source)
    assert capfd.readouterr().err == ""


def test_looking_closes_it_too(state_dir: Path) -> None:
    """`ps` is a use like any other."""
    with open_store(state_dir):
        pass
    state_dir.chmod(0o755)
    with read_store(state_dir):
        pass
    assert mode(state_dir) == 0o700


@pytest.mark.parametrize("permissions", [0o755, 0o1777])
def test_a_shared_folder_is_left_as_it_is(state_dir: Path, permissions: int) -> None:
    """A home folder or /tmp as state folder is an error: closing it would lock others out, and all else let them in."""
    state_dir.mkdir()
    (state_dir / "thesis.tex").touch()
    state_dir.chmod(permissions)
    with (
        pytest.raises(CloudtrainError, match="files that are not cloudtrain's") as caught,
        open_store(state_dir),
    ):
        pass
    assert "CLOUDTRAIN_STATE_DIR" in (caught.value.hint or "")
    assert mode(state_dir) == permissions


@AS_ROOT
def test_the_state_folder_of_somebody_else_is_an_error(
    state_dir: Path, make_source: Callable[..., Path]
) -> None:
    """To write, to look, and for the local target itself: they would read and change what is put there."""
    with open_store(state_dir):
        pass
    os.chown(state_dir, SOMEBODY, SOMEBODY)
    for opened in (open_store, read_store):
        with (
            pytest.raises(CloudtrainError, match="the folder belongs to another user") as caught,
            opened(state_dir),
        ):
            pass
        assert "CLOUDTRAIN_STATE_DIR" in (caught.value.hint or "")
    with pytest.raises(CloudtrainError, match="the folder belongs to another user"):
        submit(make_source)


@AS_ROOT
def test_the_local_target_looks_for_itself(state_dir: Path, tmp_path: Path) -> None:
    """It also writes where no store was opened before."""
    from cloudtrain.plans.plan import Plan, Upload

    state_dir.mkdir()
    os.chown(state_dir, SOMEBODY, SOMEBODY)
    from cloudtrain.targets.local.service import LocalService

    backend = LocalService(state_dir, environ={})
    plan = Plan(
        "local",
        "run-1",
        "run",
        {"run_dir": str(state_dir / "runs/run-1")},
        (Upload("code", "ab", str(state_dir / "bundles/ab/x.tar.gz"), 1, 1),),
    )
    for act in (lambda: backend.upload(plan, _Nothing()), lambda: backend.submit(plan)):
        with pytest.raises(TargetError, match="the folder belongs to another user"):
            act()
    assert list(state_dir.iterdir()) == []


class _Nothing:
    """A bundle that must not be asked to write."""

    def write(self, path: Path) -> None:
        """Write nothing."""
        raise AssertionError(path)


def test_files_are_not_opened_through_links(state_dir: Path, tmp_path: Path) -> None:
    """What lies where a file of ours should be, and leads elsewhere, is not followed."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    state_dir.mkdir(mode=0o700)
    (state_dir / STORE_FILE).symlink_to(precious)
    with pytest.raises(CloudtrainError, match="cannot be opened"), open_store(state_dir):
        pass
    assert precious.read_text() == "keep"
