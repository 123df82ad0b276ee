"""A cluster behind a login node. `ssh` is a small script here, which runs the command on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.errors import TargetUnreachable
from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

SSH = """\
#!/bin/bash
printf '%s\\n' "$*" >>"$0.calls"
[ ! -e "$0.down" ] || { echo "ssh: connect to host login1 port 22: Connection refused" >&2; exit 255; }
while [ "$1" != -- ]; do shift; done
echo "Welcome to login1. Be nice."
shift 2
SLURM_CONF=@CONF@ exec sh -c "$*"
"""


@pytest.fixture
def behind(site: Site) -> Site:
    """The same cluster, whose commands are only found on the login node."""
    folder = site.root / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(SSH.replace("@CONF@", site.environ["SLURM_CONF"]))
    ssh.chmod(0o755)
    environ = {"PATH": f"{folder}:{site.environ['PATH']}", "HOME": site.environ["HOME"]}
    return Site(site.root, environ, {"host": "me@login1"})


def test_whole_life(behind: Site) -> None:
    """A run is sent, followed, stopped and fetched through ssh, whatever a login shell greets with, over one connection
    that asks nothing."""
    script = (
        "import time\nfrom cloudtrain.runtime import model_dir\n"
        "(model_dir() / \"it's\").write_bytes(bytes(range(256)))\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    run = behind.submit(script, name="far-1")
    assert str(run.ref).startswith("slurm://me@login1:")
    run.wait_for_line("up")
    behind.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    (file,) = behind.service.download(run.ref, "model/", behind.root / "got")
    assert (file.name, file.read_bytes()) == ("it's", bytes(range(256)))
    assert [listed.ref for listed in behind.service.runs(run.ref.place)] == [run.ref]
    calls = (behind.root / "bin" / "ssh.calls").read_text().splitlines()
    options = [call.partition(" -- ")[0] for call in calls if " -- me@login1 " in call]
    assert set(options) == {options[0]}
    assert "ControlMaster=auto" in options[0]
    assert "BatchMode=yes" in options[0]


def test_login_node_down(behind: Site) -> None:
    """A login node that does not answer is out of reach: what waits for it tries again, and nothing is lost."""
    plan, tree = behind.plan("print(1)\n", name="down-1")
    behind.service.upload(plan, tree)
    down = behind.root / "bin" / "ssh.down"
    down.touch()
    with pytest.raises(TargetUnreachable) as caught:
        behind.service.submit(plan)
    assert "me@login1" in caught.value.message
    assert "ssh me@login1 sinfo" in str(caught.value.hint)
    down.unlink()
    assert not behind.service.has(plan.ref)
    assert behind.send(plan).wait().state is RunState.SUCCEEDED


def test_followed_through_an_outage(behind: Site) -> None:
    """While the login node is away a follower waits; then it reads on, and has every line once."""
    run = behind.submit(
        "import time\nfor n in range(60):\n    print(n, flush=True)\n    time.sleep(0.1)\n",
        name="outage-1",
    )
    down = behind.root / "bin" / "ssh.down"
    texts = []
    for line in behind.service.logs(run.ref, follow=True):
        texts.append(line.text)
        if line.text == "10":
            down.touch()
            Path(f"{down}.at").touch()
        if len(texts) > 11:
            continue
        if down.exists():
            _away_for_a_while(down)
    assert texts == [str(n) for n in range(60)]


def _away_for_a_while(down: Path) -> None:
    """The login node is back after a second."""
    from threading import Timer

    Timer(1.0, lambda: down.unlink(missing_ok=True)).start()
