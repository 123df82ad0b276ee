"""What a job wrote: packed or as files, model, outputs, checkpoints and logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.sagemaker.service.service import SageMakerService
from tests.fakes.sagemaker.jobs import Job
from tests.fakes.sagemaker.server import FakeAws
from tests.hints import suggested
from tests.targets.sagemaker.conftest import BUCKET, NAME, REF, plan_of
from tests.targets.sagemaker.test_archive import member, packed

ROOT = f"s3://{BUCKET}/cloudtrain/output/{NAME}/output"
CHECKPOINT = f"s3://{BUCKET}/ckpt"


def got(files: list[Path], folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def finished(fake: FakeAws, service: SageMakerService, tmp_path: Path) -> Job:
    """A job with a model, two outputs, a checkpoint and a log."""
    service.submit(
        plan_of(CheckpointConfig={"S3Uri": CHECKPOINT, "LocalPath": "/opt/ml/checkpoints"})
    )
    model = packed(
        tmp_path / "m.tar.gz", member("weights.pt", data=b"w"), member("parts/1", data=b"p")
    )
    output = packed(
        tmp_path / "o.tar.gz", member("data/plots/a.png", data=b"a"), member("data/table.csv", data=b"t"), member("success")
    )  # fmt: skip
    fake.s3.put(f"{ROOT}/model.tar.gz", model.read_bytes())
    fake.s3.put(f"{ROOT}/output.tar.gz", output.read_bytes())
    fake.s3.put(f"{CHECKPOINT}/step-1/state.pt", b"s")
    fake.s3.put(f"{CHECKPOINT}-of-another/x", b"no")
    fake.logs.write(f"{NAME}/algo-1-17", "hello", "[1,1]<stderr>:there")
    fake.logs.write(f"{NAME}/algo-2-17", "second")
    job = fake.jobs[NAME]
    job.end("Completed", ModelArtifacts={"S3ModelArtifacts": f"{ROOT}/model.tar.gz"})
    return job


LOGS = {"algo-1.log": b"[rank 0] hello\n[rank 1] there\n", "algo-2.log": b"[rank 1] second\n"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model/", {"weights.pt": b"w", "parts/1": b"p"}),
        ("model/weights.pt", {"weights.pt": b"w"}),
        ("model/parts", {"1": b"p"}),
        ("outputs", {"plots/a.png": b"a", "table.csv": b"t"}),
        ("outputs/plots", {"a.png": b"a"}),
        ("checkpoint/", {"step-1/state.pt": b"s"}),
        ("checkpoint/step-1", {"state.pt": b"s"}),
        ("logs", LOGS),
        ("logs/algo-2.log", {"algo-2.log": LOGS["algo-2.log"]}),
    ],
)
@pytest.mark.slow_after(4)
def test_one_place(
    finished: Job, service: SageMakerService, path: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Its content comes directly into the folder, and nothing else is left there."""
    folder = tmp_path / "got"
    assert got(service.download(REF, path, folder), folder) == expected
    assert {
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    } == set(expected)


def test_everything(finished: Job, service: SageMakerService, tmp_path: Path) -> None:
    """Each place in a folder of its own."""
    assert got(service.download(REF, "", tmp_path / "got"), tmp_path / "got") == {
        "model/weights.pt": b"w", "model/parts/1": b"p", "outputs/plots/a.png": b"a", "outputs/table.csv": b"t",
        "checkpoint/step-1/state.pt": b"s", **{f"logs/{name}": text for name, text in LOGS.items()},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("members", "path", "expected"),
    [
        (["data/table.csv"], "outputs/data", {"table.csv"}),
        (["data/table.csv"], "outputs", {"data/table.csv"}),
        (["data/table.csv", "success"], "outputs/data", {"table.csv"}),
        (["data/table.csv", "failure"], "outputs", {"table.csv"}),
        (["data/data/table.csv", "success"], "outputs", {"data/table.csv"}),
        (["success"], "outputs", {"success"}),
    ],
)
@pytest.mark.slow_after(2)
def test_an_output_called_data(
    members: list[str],
    path: str,
    expected: set[str],
    fake: FakeAws,
    service: SageMakerService,
    tmp_path: Path,
) -> None:
    """Only beside the word on how the job ended is `data` the folder of all outputs, and it can be named even then."""
    service.submit(plan_of())
    fake.s3.put(
        f"{ROOT}/output.tar.gz", packed(tmp_path / "o.tar.gz", *map(member, members)).read_bytes()
    )
    assert got(service.download(REF, path, tmp_path / "got"), tmp_path / "got").keys() == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("model/data", {"weights.bin"}), ("model", {"data/weights.bin", "success"})],
)
def test_a_model_in_a_folder_called_data(
    path: str, expected: set[str], fake: FakeAws, service: SageMakerService, tmp_path: Path
) -> None:
    """A model is copied as it was packed."""
    service.submit(plan_of())
    model = packed(tmp_path / "m.tar.gz", member("data/weights.bin"), member("success"))
    fake.s3.put(f"{ROOT}/model.tar.gz", model.read_bytes())
    assert got(service.download(REF, path, tmp_path / "got"), tmp_path / "got").keys() == expected


def test_uncompressed_results(fake: FakeAws, service: SageMakerService, tmp_path: Path) -> None:
    """`compress_output: false`: files under prefixes, over more than one page."""
    fake.s3.page_size = 2
    service.submit(
        plan_of(OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/out/", "CompressionType": "NONE"})
    )
    root = f"s3://{BUCKET}/out/{NAME}/output"
    for number in range(5):
        fake.s3.put(f"{root}/model/shard-{number}", b"%d" % number)
    fake.s3.put(f"{root}/data/plots/a.png", b"a")
    assert len(service.download(REF, "model", tmp_path / "model")) == 5
    assert got(service.download(REF, "outputs/plots", tmp_path / "o"), tmp_path / "o") == {
        "a.png": b"a"
    }


@pytest.mark.parametrize("key", ["../evil", "a/../../evil", "/etc/evil", "../../../x/y/evil"])
def test_object_names_are_not_trusted(
    fake: FakeAws, finished: Job, service: SageMakerService, key: str, tmp_path: Path
) -> None:
    """An object's key may hold anything; none is written outside of the folder."""
    fake.s3.put(f"{CHECKPOINT}/{key}", b"evil")
    with pytest.raises(TargetError, match="outside"):
        service.download(REF, "checkpoint", tmp_path / "deep/got")
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "deep").exists()


def test_nothing_there_yet(service: SageMakerService, job: Job, tmp_path: Path) -> None:
    """A job that has not ended has no model; the hint names what a run writes."""
    with pytest.raises(TargetError, match="wrote nothing to `model`") as caught:
        service.download(REF, "model/", tmp_path)
    assert (caught.value.exit_code, "`logs/`" in (caught.value.hint or "")) == (1, True)
    assert service.download(REF, "", tmp_path) == []


@pytest.mark.parametrize(
    ("path", "hint"),
    [("modle", suggested("model")), ("model/../../x", suggested("model"))],
)
def test_no_such_place(
    finished: Job, service: SageMakerService, path: str, hint: str, tmp_path: Path
) -> None:
    """An error that names the nearest."""
    with pytest.raises(UsageError) as caught:
        service.download(REF, path, tmp_path)
    assert caught.value.hint == hint or "`model`" in str(caught.value.hint)


def test_a_lost_connection(
    fake: FakeAws, finished: Job, service: SageMakerService, tmp_path: Path
) -> None:
    """It is tried again."""
    fake.faults.close_after("GetObject")
    assert len(service.download(REF, "model", tmp_path / "got")) == 2
