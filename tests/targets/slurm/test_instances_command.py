"""`cloudtrain instances --target slurm`, with a `sinfo` that says what a cluster would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.cli.app import run_command

SINFO = """\
#!/bin/sh
printf '%s\\n' 'g1|p5|idle|192|2097152|gpu:h100:8|efa' 'g2|p5|allocated|192|2097152|gpu:h100:8|efa'
"""


@pytest.fixture
def sinfo(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster."""
    folder = clean_environment / "bin"
    folder.mkdir()
    (folder / "sinfo").write_text(SINFO)
    (folder / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (clean_environment / "cloudtrain.toml").write_text(
        f'[slurm]\nshared_dir = "{clean_environment}/shared"\n'
    )


@pytest.mark.usefixtures("sinfo")
def test_nodes_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are alike in one row: how many, how many idle, GPUs, memory, partitions; and the same as JSON."""
    assert run_command(["instances", "--target", "slurm"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "NODES",
        "IDLE",
        "GPUS",
        "GPU",
        "vCPU",
        "MEMORY",
        "PARTITIONS",
        "FEATURES",
    ]
    assert row.split() == ["2", "1", "8", "h100", "192", "2048", "GiB", "p5", "efa"]
    assert run_command(["instances", "--target", "slurm", "--json"]) == 0
    (kind,) = json.loads(capsys.readouterr().out)
    assert (kind["nodes"], kind["idle"], kind["gpus"], kind["partitions"]) == (2, 1, 8, ["p5"])


@pytest.mark.usefixtures("sinfo")
def test_nodes_have_no_names_of_types(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that a cloud's table would know is refused, with what to do."""
    assert run_command(["instances", "p5.48xlarge", "--target", "slurm"]) == 2
    assert "remove `p5.48xlarge`" in capsys.readouterr().err
