"""Scripts that create several jobs: each has a verdict and can be chosen, and the run goes on between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.adoption.test_scripts import CALL, REQUEST, SEND, adopted, folder
from tests.cli.conftest import Cli, cli

__all__ = ["adopted", "cli", "folder"]

SEVERAL = """
import time
def create(name, **fields):
    return client._make_api_call("CreateTrainingJob", dict(request, TrainingJobName=name, **fields))
def describe(name):
    return client._make_api_call("DescribeTrainingJob", {"TrainingJobName": name})
for seed in (1, 2):
    create("seed-2026-01-0%d-00-00-00-000" % seed, HyperParameters={"seed": str(seed)})
while describe("seed-2026-01-01-00-00-00-000")["TrainingJobStatus"] != "Completed":
    time.sleep(600)
time.sleep(600)
model = describe("seed-2026-01-02-00-00-00-000")["ModelArtifacts"]["S3ModelArtifacts"]
assert create("prep")["TrainingJobArn"].endswith("/prep")
endpoint = client._make_api_call("CreateEndpoint", {"EndpointName": "e"})["EndpointArn"]
create("tuned", HyperParameters={"start": model})
client._make_api_call("CreateProcessingJob", {"ProcessingJobName": "report"})
client._make_api_call("PutObject", {"Bucket": "b", "Key": "k", "Body": b"kept"})
assert client._make_api_call("GetObject", {"Bucket": "b", "Key": "k"})["Body"].read() == b"kept"
client._make_api_call("GetObject", {"Bucket": "b", "Key": "missing"})
create("never")
"""


def test_each_job_of_a_script_has_a_verdict(adopted: Callable[..., ct.Adoption]) -> None:
    """A loop, a function, a job that needs the output of another, and a failure behind them. None stands for all."""
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(CALL + SEVERAL)
    assert caught.value.code == "CT981"
    message = caught.value.message
    for words in (
        "5 jobs",
        "`seed` (equal)",
        "`seed-2` (equal)",
        "`prep` (equal)",
        "`other` (not adopted: ",
    ):
        assert words in message
    assert "`tuned` (not equal: s3://" in message
    lines = (CALL + SEVERAL).splitlines()
    failing = next(number for number, line in enumerate(lines, 1) if '"missing"' in line)
    assert f"failed: line {failing}: " in message
    assert "s3://b/missing" in message
    assert "--job seed" in str(caught.value.hint)
    assert "--all" in str(caught.value.hint)


def test_all_jobs_are_written(cli: Cli, folder: Path, tmp_path: Path) -> None:
    """Each into a folder of its own. The exit code tells of those that are not equal."""
    (folder / "job.py").write_text(CALL + SEVERAL)
    found = cli("adopt", str(folder / "job.py"), "--yes", "--all", "--json", "--write", "out")
    data = json.loads(found.out)
    assert found.code == 1
    assert {name: job["equal"] for name, job in data.items()} == {
        "seed": True, "seed-2": True, "prep": True, "tuned": False, "other": False,
    }  # fmt: skip
    written = {
        name: ct.load_job(Path("out", name, "job.yaml")) for name in ("seed", "seed-2", "tuned")
    }
    assert [job.hyperparameters.get("seed") for job in written.values()] == [1, 2, None]
    (lost,) = data["tuned"]["differences"]
    assert lost["path"].endswith("seed-2026-01-02-00-00-00-000/output/model.tar.gz")
    assert cli("adopt", str(folder / "job.py"), "--all", "--job", "seed").code == 2


@pytest.mark.parametrize("name", ["seed-2", "seed-2026-01-02-00-00-00-000", "2"])
def test_a_job_is_chosen_by_its_name(name: str, tmp_path: Path) -> None:
    """That of its job file, or that which the other tool gave it. Every error says which names there are."""
    names = ("seed-2026-01-01-00-00-00-000", "seed-2026-01-02-00-00-00-000", "prep")
    requests = [{**REQUEST, "TrainingJobName": each} for each in names]
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    found = ct.adopt(tmp_path / "requests.json", job=name)
    assert found.job.name == "seed"
    assert found.equal
    for wrong in ("nothing like it", "Seed", ""):
        with pytest.raises(ct.CloudtrainError) as caught:
            ct.adopt(tmp_path / "requests.json", job=wrong)
        assert "`seed" in str(caught.value.hint)


@pytest.mark.slow
def test_one_job_among_others_is_adopted(adopted: Callable[..., ct.Adoption]) -> None:
    """Where only one is a training, there is nothing to choose; the verdict names the others."""
    text = """
client._make_api_call("CreatePipeline", {"PipelineName": "p", "PipelineDefinition": "{}"})
client._make_api_call("CreateTrainingJob", request)
client._make_api_call("CreateTransformJob", {"TransformJobName": "t"})
"""
    found = adopted(CALL + text)
    assert found.equal
    assert "line 6: this is a SageMaker pipeline" in found.kind
    assert "line 8: this is a SageMaker batch transform job" in found.kind


def notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})


WRITES = {
    "%%bash\nmkdir -p a/b\ncat > a/b/args.yaml <<'EOF'\nlr: $x\nEOF\n": {
        "a/b/args.yaml": "lr: $x\n"
    },
    '%%sh\ncat <<EOF >> c\n1\nEOF\necho "d > e" >> c': {"c": "1\nd > e\n"},
    "!mkdir -p f\n!echo -n one > f/g\n!echo two | tee -a f/g": {"f/g": "onetwo\n"},
    "%%bash\ntee h <<EOF > /dev/null\n2\nEOF\nprintf 'a\\nb' > i": {"h": "2\n", "i": "a\nb"},
}
NOT_RUN = [
    "%%bash\necho x > never; python prepare.py",
    "%%bash\necho $(date) > never",
    "%%bash\ncat > never <<EOF\n$HOME\nEOF",
    "!python prepare.py > never",
    "!wget https://example.com/never",
]


def test_cells_that_only_write_files_are_run(adopted: Callable[..., ct.Adoption]) -> None:
    """Nothing else of the shell is, and the verdict names its cells."""
    files = {name: text for written in WRITES.values() for name, text in written.items()}
    check = (
        f"import os\nfor name, text in {files!r}.items(): assert open(name).read() == text, name\n"
    )
    text = notebook(*WRITES, *NOT_RUN, check + "assert not os.path.exists('never')\n" + CALL, SEND)
    found = adopted(text, "job.ipynb")
    assert found.equal
    assert "; not run: cell 5, cell 6, cell 7, cell 8, cell 9; " in found.kind
    assert "failed" not in found.kind


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            ["%%bash\npython prepare.py", "open('data.json')"],
            ("cell 2: FileNotFoundError", "not run: cell 1"),
        ),
        (["x = 1\ny = 'a"], ("cell 1: SyntaxError", "line 2")),
    ],
)
def test_a_notebook_without_a_job(
    cells: list[str], words: tuple[str, ...], adopted: Callable[..., ct.Adoption]
) -> None:
    """A notebook takes no arguments, so nothing advises them; cells that were not run are named."""
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(notebook(*cells), "job.ipynb")
    assert "--args" not in str(caught.value.hint)
    for word in words:
        assert word in caught.value.message


FIRST = """
def create(name, **fields):
    return client._make_api_call("CreateTrainingJob", dict(request, TrainingJobName=name, **fields))
def describe(name):
    return client._make_api_call("DescribeTrainingJob", {"TrainingJobName": name})
create("one", HyperParameters={"a": "1"})
described = describe("one")
"""
READS = {
    "waits": (
        "while described['TrainingJobStatus'] not in ('Completed', 'Failed'): pass\n"
        "if described.get('FailureReason'): raise SystemExit\n"
        "name, arn = described['TrainingJobName'], described['TrainingJobArn']\n"
        "same = described['HyperParameters']['a'] + described['ResourceConfig']['InstanceType']\n"
        "print(described)\n"
        "model = described['ModelArtifacts']['S3ModelArtifacts']",
        [],
    ),
    "a branch": (
        "lr = '0.1' if 'FinalMetricDataList' in described else '0.5'",
        ["one.FinalMetricDataList"],
    ),
    "a value": ("t = str(described.get('BillableTimeInSeconds'))", ["one.BillableTimeInSeconds"]),
    "a metric": (
        "best = [row for row in described['FinalMetricDataList']]", ["one.FinalMetricDataList"],
    ),
    "everything": ("text = str(dict(described))", ["one (all of it)"]),
    "another's job": ("describe('before')['HyperParameters']", ["before.HyperParameters"]),
}  # fmt: skip


@pytest.mark.parametrize("case", READS)
def test_a_job_that_follows_what_another_has_measured(
    case: str, adopted: Callable[..., ct.Adoption]
) -> None:
    """The earlier job has not run, so what the script has read of it is made up. Its state and its own
    fields are not."""
    read, lost = READS[case]
    text = CALL + FIRST + read + '\ncreate("two")\n'
    assert adopted(text, job="one").equal
    found = adopted(text, job="two")
    assert [item.path for item in found.differences] == lost


@pytest.mark.parametrize("name", ["bad name!", "-a", "x" * 64])
def test_a_name_that_the_service_refuses(name: str, tmp_path: Path) -> None:
    """The service has no such job."""
    (tmp_path / "request.json").write_text(json.dumps({**REQUEST, "TrainingJobName": name}))
    found = ct.adopt(tmp_path / "request.json")
    assert [item.path for item in found.differences] == ["TrainingJobName"]
