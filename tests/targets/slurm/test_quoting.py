"""The batch script through a real bash: whatever a user writes arrives as it was written. Needs no cluster: `srun` and
`scontrol` are small scripts here, which run the first task on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.targets.slurm.settings import Slurm
from tests.examples import examples
from tests.targets.slurm.site import compile_plan

SHOW = (
    "import json, os, sys\n"
    "names = ('V', 'CLOUDTRAIN_INPUT_DATA', 'CLOUDTRAIN_MODEL_DIR')\n"
    "json.dump([sys.argv[1:], [os.environ[name] for name in names]], open(os.environ['CLOUDTRAIN_MODEL_DIR'] + '/said', 'w'))\n"
)
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_NODEID=0 SLURM_PROCID=0 SLURM_NNODES=1 exec "$@"\n'
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
NASTY = (
    "",
    " ",
    "'",
    '"',
    "a b",
    "$HOME",
    "`ls`",
    "$(ls)",
    "\\",
    "a\nb",
    "-x",
    "--",
    "*",
    "é☃",
    "#",
    ";",
    "!",
    "~",
    "\t",
)
FOLDER = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/%\\\0"),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """Runs the batch script of a job, and returns what the script was told."""
    root = tmp_path_factory.mktemp("quoting")
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho n1\n",
        "squeue": "#!/bin/sh\n",
    }.items():
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    (root / "src").mkdir()
    (root / "src" / "train.py").write_text(SHOW)
    tree, numbers = scan(root / "src"), iter(range(10**6))

    def run(folder: str = "shared", **job: Any) -> list[Any]:
        name = f"run-{next(numbers)}"
        shared = Path(root, "clusters", f"{folder}.")  # no `..`
        cluster = Slurm(shared_dir=str(shared), python=sys.executable)
        fields = {
            "inputs": {"data": {"slurm": "/da ta/it's"}},
            "environment": {"variables": {"V": "v"}},
        } | job
        plan = compile_plan(
            ct.TrainingJob(name="job", entry_point="train.py", **fields),
            cluster,
            name=name,
            bundle=tree.identity,
        )
        archive = Path(plan.uploads[0].destination)
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            tree.write(archive)
        environ = {
            "PATH": f"{root}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_ON_NODE": "2",
        }
        argv = ["bash", "--norc", "-c", plan.request["script"]]
        done = subprocess.run(argv, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        said: list[Any] = json.loads((shared / "runs" / name / "model" / "said").read_text())
        return said

    return run


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.slow_after(6)
def test_awkward_texts(run_here: Callable[..., list[Any]], text: str) -> None:
    """What a shell would read arrives unread: as an argument and as a variable."""
    arguments, (variable, place, _) = run_here(
        hyperparameters={"key": f"x{text}"}, environment={"variables": {"V": f"x{text}"}}
    )
    assert arguments == ["--key", f"x{text}"]
    assert variable == f"x{text}"
    assert place == "/da ta/it's"


@settings(max_examples=examples(15, quick=5))
@given(argument=TEXT, variable=TEXT, folder=FOLDER)
def test_any_text(
    run_here: Callable[..., list[Any]], argument: str, variable: str, folder: str
) -> None:
    """Any text arrives byte for byte, in a shared folder of any name."""
    arguments, found = run_here(
        folder, hyperparameters={"key": f"x{argument}"}, environment={"variables": {"V": variable}}
    )
    assert arguments == ["--key", f"x{argument}"]
    assert found[0] == variable
    assert f"/{folder}." in found[2]
