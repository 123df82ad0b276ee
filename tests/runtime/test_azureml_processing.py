"""Processing jobs on Azure ML, rehearsed: the command line of a real plan, started by bash once for each instance."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.runtime.azureml_processing import prepare
from cloudtrain.runtime.errors import SetupError
from tests.deadlines import DEADLINE

RUNTIME = Path(__file__).parents[2] / "cloudtrain" / "runtime"

SCRIPT = """
import json, os, sys
from cloudtrain.runtime import detect_environment, input_dir, output_dir
here = detect_environment()
raw = input_dir("raw")
found = {
    "argv": sys.argv[1:],
    "raw": str(raw),
    "files": sorted(str(path.relative_to(raw)) for path in raw.rglob("*.csv")),
    "texts": sorted(path.read_text() for path in raw.rglob("*.csv")),
    "instance": [here.node_rank, here.node_count],
    "process": [here.rank, here.world_size, here.platform],
    "variables": {name: value for name, value in os.environ.items() if "_INPUT_" in name or name == "MASTER_ADDR"},
}
(output_dir("lists") / f"{here.node_rank}.json").write_text(json.dumps(found))
"""
FILES = ("a.csv", "b/1.csv", "b/2.csv", "b/3.csv", "ä b.csv")
JOB: dict[str, Any] = {
    "name": "prep",
    "entry_point": "steps/prepare.py",
    "resources": {"instance_count": 2, "instance_type": "Standard_D4s_v3"},
    "environment": {"azureml": "azureml:base:1"},
    "inputs": {
        "raw": {"azureml": "azureml:raw:1", "shard": True},
        "raw2": {"azureml": "azureml:raw:2"},
    },
    "outputs": {"lists": {}},
}


class Cluster:
    """Instances of Azure ML: each has the whole bundle, all inputs and the outputs; references become their paths."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outputs = root / "wd" / "lists"
        self.outputs.mkdir(parents=True)
        for name in FILES:
            path = root / "wd" / "INPUT_raw" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"text of {name}")
        (root / "wd" / "INPUT_raw2").mkdir()
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(sys.executable)
        (root / "temporary").mkdir()

    def path(self, reference: str) -> str:
        kind, name = reference.split(".")
        return str(self.root / "wd" / (f"INPUT_{name}" if kind == "inputs" else name))

    def run(
        self, job: ct.ProcessingJob, files: dict[str, str]
    ) -> list[subprocess.CompletedProcess[str]]:
        """What every instance did."""
        body = ct.plan(job, "azureml").request["properties"]
        command = re.sub(r"\$\{\{(\S+)\}\}", lambda match: self.path(match[1]), body["command"])
        count = body["resources"]["instanceCount"] * body["distribution"]["processCountPerInstance"]
        done = []
        for rank in range(count):
            code = self.root / f"code-{rank}"
            shutil.copytree(
                RUNTIME,
                code / "cloudtrain" / "runtime",
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            for name, text in {"cloudtrain/__init__.py": "", **files}.items():
                (code / name).parent.mkdir(parents=True, exist_ok=True)
                (code / name).write_text(text)
            env = self.environment(rank, count, body)
            argv = ["bash", "-c", command]
            done.append(
                subprocess.run(
                    argv, cwd=code, env=env, capture_output=True, text=True, timeout=DEADLINE
                )
            )
        return done

    def environment(self, rank: int, count: int, body: dict[str, Any]) -> dict[str, str]:
        """What the service sets for PyTorch's distribution, and nothing else of this process than a PATH."""
        return {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self.root / "temporary"),
            "AZUREML_RUN_ID": "prep-1",
            "AZUREML_NODE_COUNT": str(count),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "NODE_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "10.0.0.4",
            "MASTER_PORT": "6105",
            **{f"AZURE_ML_INPUT_{name}": self.path(f"inputs.{name}") for name in body["inputs"]},
            **{f"AZURE_ML_OUTPUT_{name}": self.path(f"outputs.{name}") for name in body["outputs"]},
        }

    def found(self) -> list[dict[str, Any]]:
        """What the scripts saw, instance by instance."""
        return [json.loads(path.read_text()) for path in sorted(self.outputs.iterdir())]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def job(
    make_source: Callable[..., Path], files: dict[str, str], **changes: Any
) -> ct.ProcessingJob:
    return ct.ProcessingJob(**{**JOB, **changes}, source_dir=str(make_source(files)))


@pytest.mark.slow
def test_every_file_goes_to_one_instance_and_the_script_sees_itself_as_elsewhere(
    cluster: Cluster, make_source: Callable[..., Path]
) -> None:
    """Shares are disjoint and whole, sub-folders kept; the process is rank 0 of 1, and its instance has a number."""
    files = {"steps/prepare.py": SCRIPT}
    done = cluster.run(job(make_source, files), files)
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    first, second = cluster.found()
    assert first["files"] == ["a.csv", "b/2.csv", "ä b.csv"]
    assert second["files"] == ["b/1.csv", "b/3.csv"]
    assert second["texts"] == ["text of b/1.csv", "text of b/3.csv"]
    assert [first["instance"], second["instance"]] == [[0, 2], [1, 2]]
    assert first["process"] == second["process"] == [0, 1, "azureml"]
    assert "MASTER_ADDR" not in first["variables"]
    assert "files of the input `raw` on instance 1 of 2 (the first is 0): 2" in done[1].stderr


@pytest.mark.slow
def test_arguments_are_exact_and_name_the_share(
    cluster: Cluster, make_source: Callable[..., Path]
) -> None:
    """The share stands where the whole stood; a place whose name only begins alike stays; other words are untouched."""
    files = {"steps/prepare.py": SCRIPT}
    values = {
        "dir": "${{inputs.raw}}",
        "glob": "${{inputs.raw}}/b/*.csv",
        "other": "${{inputs.raw2}}",
        "text": "it's $HOME; `x` \n --",
    }
    done = cluster.run(job(make_source, files, hyperparameters=values), files)
    assert done[0].returncode == 0, done[0].stderr
    for seen in cluster.found():
        share = seen["raw"]
        assert share.startswith(str(cluster.root / "temporary"))
        words = [
            "--dir",
            share,
            "--glob",
            f"{share}/b/*.csv",
            "--other",
            cluster.path("inputs.raw2"),
        ]
        assert seen["argv"] == [*words, "--text", values["text"]]
        assert seen["variables"] == {
            "AZURE_ML_INPUT_raw": share,
            "CLOUDTRAIN_INPUT_RAW": share,
            "AZURE_ML_INPUT_raw2": cluster.path("inputs.raw2"),
        }


def test_a_shell_line_sees_the_share_too(
    cluster: Cluster, make_source: Callable[..., Path]
) -> None:
    """`command` is one shell line for each instance, with its own pipes and variables, quotes and all."""
    line = 'cat \'${{inputs.raw}}\'/b/*.csv | wc -l > "${{outputs.lists}}/$CLOUDTRAIN_INSTANCE.json"; echo "it\'s ${HOME-}"'
    files = {"unused.py": ""}
    done = cluster.run(job(make_source, files, entry_point=None, command=line), files)
    assert [each.stdout for each in done] == ["it's \n"] * 2
    # Files without a line end: `wc -l` counts none.
    assert cluster.found() == [0, 0]


def test_the_exit_code_is_the_scripts(cluster: Cluster, make_source: Callable[..., Path]) -> None:
    """A shell script runs with bash, although it is not executable, and its code is the instance's."""
    files = {"prepare.sh": "exit $((40 + CLOUDTRAIN_INSTANCE))\n"}
    done = cluster.run(job(make_source, files, entry_point="prepare.sh"), files)
    assert [each.returncode for each in done] == [40, 41]


def test_one_instance_gets_all(cluster: Cluster, make_source: Callable[..., Path]) -> None:
    """The same path for one instance: its share is everything."""
    files = {"steps/prepare.py": SCRIPT}
    machines = {"instance_type": "Standard_D4s_v3"}
    assert cluster.run(job(make_source, files, resources=machines), files)[0].returncode == 0
    (seen,) = cluster.found()
    assert (seen["files"], seen["instance"]) == (sorted(FILES), [0, 1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), max_size=4
    )
)
def test_words_that_do_not_name_the_input_stay(tmp_path: Path, words: list[str]) -> None:
    """Whatever the arguments hold, `--` and `--shard` too."""
    (tmp_path / "raw").mkdir(exist_ok=True)
    arguments = ["--shard", f"raw={tmp_path}/raw", "--", "python", "x.py", *words]
    argv, _ = prepare(arguments, {"RANK": "0", "WORLD_SIZE": "1"}, str(tmp_path / "shares"))
    assert argv == ["python", "x.py", *words]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no program was given"),
        (["--"], "no program was given"),
        (["python", "x.py"], "no program was given"),
        (["--shard", "raw", "--", "x"], "`--shard raw` is not `--shard NAME=PATH`"),
        (["--share", "raw=/x", "--", "x"], "`--share raw=/x` is not `--shard NAME=PATH`"),
        (["--shard", "raw=/nowhere/at/all", "--", "x"], "the input `raw` cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    """With one sentence, before anything starts."""
    with pytest.raises(SetupError, match=re.escape(message)):
        prepare(arguments, {}, str(tmp_path))


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """One line and a hint on stderr, and exit code 1."""
    argv = [sys.executable, "-m", "cloudtrain.runtime.azureml_processing", "--", "pyhton", "x.py"]
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(RUNTIME.parents[1])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: `pyhton` is not on the PATH\n\nhint: use an environment that has it\n"
    )
