"""What a job wrote: model, outputs, checkpoints, artifacts and logs, from wherever its body says that they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.azureml.compile.places import places_of
from cloudtrain.targets.azureml.reading import BlobPlace, DatastorePlace, place_of
from cloudtrain.targets.azureml.service.blobs import READ
from cloudtrain.targets.azureml.service.service import AzureMLService
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml import history as run_history
from tests.fakes.azureml.datastores import Datastore
from tests.fakes.azureml.files import ARTIFACTS, OUTPUTS, artifact
from tests.fakes.azureml.job import Job
from tests.fakes.azureml.messages import Refused, Request
from tests.hints import suggested
from tests.targets.azureml.conftest import NAME, REF, WORKSPACE, hold_back, plan_of

LONG = (
    "azureml://subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg/workspaces/ws"
)
CHECKPOINT = f"cloudtrain/checkpoints/{NAME}"
BODY: dict[str, Any] = {
    "model": {"jobOutputType": "uri_folder"},
    "plots": {"jobOutputType": "uri_folder"},
    "table": {
        "jobOutputType": "uri_file",
        "uri": "azureml://datastores/workspaceblobstore/paths/tables/t.csv",
    },
    "checkpoint": {
        "jobOutputType": "uri_folder",
        "uri": f"azureml://datastores/workspaceblobstore/paths/{CHECKPOINT}/",
    },
}


def got(files: list[Path], folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def finished(fake: FakeAzure, service: AzureMLService) -> Job:
    """A job with a model, two outputs, a checkpoint, an artifact and logs."""
    service.submit(plan_of(outputs=BODY))
    fake.outputs.write(NAME, "model", "weights.pt", b"w")
    fake.outputs.write(NAME, "model", "parts/1", b"p")
    fake.outputs.write(NAME, "model2", "other", b"no")
    fake.outputs.write(NAME, "plots", "a.png", b"a")
    fake.outputs.write_artifact(NAME, "outputs/metrics.json", b"{}")
    fake.blobs.put(OUTPUTS, "tables/t.csv", b"t")
    fake.blobs.put(OUTPUTS, "tables/t.csv.bak", b"no")
    fake.blobs.put(OUTPUTS, f"{CHECKPOINT}/step-1/state.pt", b"s")
    fake.blobs.put(OUTPUTS, f"{CHECKPOINT}-of-another/x", b"no")
    fake.logs.write(NAME, "user_logs/std_log_process_0.txt", "hello")
    fake.logs.write(NAME, "system_logs/lifecycler/lifecycler.log", "made")
    fake.jobs[NAME].enter("Running")
    fake.jobs[NAME].end("Completed")
    return fake.jobs[NAME]


LOGS = {
    "user_logs/std_log_process_0.txt": b"hello\n",
    "system_logs/lifecycler/lifecycler.log": b"made\n",
}
ONE = [
    ("model/", {"weights.pt": b"w", "parts/1": b"p"}),
    ("outputs/model", {"weights.pt": b"w", "parts/1": b"p"}),
    ("model/weights.pt", {"weights.pt": b"w"}),
    ("model/parts", {"1": b"p"}),
    ("outputs/plots", {"a.png": b"a"}),
    ("outputs/plots/a.png", {"a.png": b"a"}),
    ("outputs/table", {"t.csv": b"t"}),
    ("outputs/metrics.json", {"metrics.json": b"{}"}),
    ("outputs", {"plots/a.png": b"a", "table/t.csv": b"t", "metrics.json": b"{}"}),
    ("checkpoint", {"step-1/state.pt": b"s"}),
    ("checkpoint/step-1", {"state.pt": b"s"}),
    ("logs", LOGS),
    ("logs/user_logs", {"std_log_process_0.txt": b"hello\n"}),
]


@pytest.mark.parametrize(("path", "expected"), ONE)
@pytest.mark.slow_after(5)
def test_one_place(
    finished: Job, service: AzureMLService, path: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Its content comes directly into the folder, and nothing else is left there."""
    folder = tmp_path / "got"
    assert got(service.download(REF, path, folder), folder) == expected
    assert {
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    } == set(expected)


def test_everything(finished: Job, service: AzureMLService, tmp_path: Path) -> None:
    """Each place in a folder of its own."""
    assert got(service.download(REF, "", tmp_path), tmp_path) == {
        "model/weights.pt": b"w", "model/parts/1": b"p", "checkpoint/step-1/state.pt": b"s",
        "outputs/plots/a.png": b"a", "outputs/table/t.csv": b"t", "outputs/metrics.json": b"{}",
        **{f"logs/{name}": text for name, text in LOGS.items()},
    }  # fmt: skip


def test_a_declared_output_comes_before_an_artifact_of_its_name(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """`outputs/plots` is the output; the artifact store is not even asked for it."""
    fake.outputs.write_artifact(NAME, "outputs/plots/a.png", b"another")
    assert got(service.download(REF, "outputs/plots", tmp_path), tmp_path) == {"a.png": b"a"}
    assert fake.received("*", "workspaceartifactstore") == []


def test_an_empty_file(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """Storage has no byte of it to begin with, and it is a result all the same."""
    fake.outputs.write(NAME, "plots", "empty", b"")
    assert got(service.download(REF, "outputs/plots", tmp_path), tmp_path) == {
        "a.png": b"a",
        "empty": b"",
    }


@pytest.mark.parametrize("secrets", ["sas", "key", "none"])
def test_whatever_opens_the_datastore(
    fake: FakeAzure, finished: Job, service: AzureMLService, secrets: Any, tmp_path: Path
) -> None:
    """A signature, the account's key, or the caller's identity."""
    fake.datastores["workspaceblobstore"].secrets = secrets
    assert len(service.download(REF, "model", tmp_path)) == 2


def test_folders_of_data_lake_storage(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """They are listed as empty files with a mark, and are none."""
    fake.blobs.put(OUTPUTS, f"azureml/{NAME}/plots/empty", b"", hdi_isfolder="true")
    assert got(service.download(REF, "outputs/plots", tmp_path), tmp_path) == {"a.png": b"a"}


def test_lists_of_many_pages(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """All of them."""
    fake.blobs.page_size = 3
    for number in range(20):
        fake.outputs.write(NAME, "plots", f"{number}.png", b"%d" % number)
    assert len(service.download(REF, "outputs/plots", tmp_path)) == 21


@pytest.mark.slow
def test_a_large_file_comes_in_parts(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """A connection that breaks costs the rest of its part: no other part is asked for again."""
    data = b"".join(b"%015d\n" % number for number in range(11 * READ // 64))
    fake.outputs.write(NAME, "model", "big.bin", data)
    fake.faults.cut("GET", r"big\.bin", after=1000, times=2)
    fake.faults.close_before("GET", r"big\.bin", times=1)
    files = service.download(REF, "model/big.bin", tmp_path)
    assert files[0].read_bytes() == data
    ranges = [request.headers["x-ms-range"] for request in fake.received("GET", r"big\.bin")]
    assert {text.split("=")[1].split("-")[0] for text in ranges} == {
        str(start) for start in (0, READ, 2 * READ)
    }
    assert len(ranges) == 3 + 3


@pytest.mark.slow
def test_keys_that_expire_while_a_file_is_copied(
    fake: FakeAzure,
    finished: Job,
    service: AzureMLService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a file of many hours: a new one goes on where the old one ended."""
    data = b"".join(b"%015d\n" % number for number in range(10 * READ // 16))
    fake.outputs.write(NAME, "model", "big.bin", data)
    expiring = {f"bytes={start * READ}-{(start + 1) * READ - 1}" for start in (2, 5, 9)}
    authorize = fake.blobs.authorize

    def expire(request: Request, *rest: Any) -> None:
        authorize(request, *rest)
        part = request.headers.get("x-ms-range", "")
        if part in expiring:
            expiring.remove(part)
            raise Refused(
                403, "AuthenticationFailed", "Signature not valid in the specified time frame"
            )

    monkeypatch.setattr(fake.blobs, "authorize", expire)
    (file,) = service.download(REF, "model/big.bin", tmp_path)
    assert file.read_bytes() == data
    assert expiring == set()
    assert len(fake.received("GET", r"big\.bin")) == 10 + 3


def test_ctrl_c_does_not_wait_for_the_rest_of_a_file(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """Parts that are on their way come to their end; no other is asked for, and nothing is left in the folder."""
    fake.outputs.write(NAME, "model", "big.bin", bytes(10 * READ))
    hold_back(fake, "GET", r"big\.bin", interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        service.download(REF, "model", tmp_path)
    assert len(fake.received("GET", r"big\.bin")) <= 1 + 4
    assert not [path.name for path in tmp_path.rglob("*") if "big.bin" in path.name]


def test_a_file_that_may_not_be_read_ends_the_others(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """The error is that file's, and a large one beside it is not copied to its end first."""
    fake.outputs.write(NAME, "model", "big.bin", bytes(10 * READ))
    fake.faults.refuse("GET", r"weights\.pt", 403, "AuthorizationFailure", times=99)
    hold_back(fake, "GET", r"big\.bin")
    with pytest.raises(TargetError, match="storage account"):
        service.download(REF, "model", tmp_path)
    assert len(fake.received("GET", r"big\.bin")) <= 1 + 4


def test_a_file_that_changes_while_it_is_copied(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """All of it is of one version: it is begun again, and given up when it does not come to rest."""
    old, new = b"o" * (READ + 10), b"n" * (READ + 10)
    fake.outputs.write(NAME, "model", "big.bin", old)
    changes = [lambda: fake.outputs.write(NAME, "model", "big.bin", new)]
    fake.after("GET", r"big\.bin", lambda _: changes.pop()() if changes else None)
    (file,) = service.download(REF, "model/big.bin", tmp_path)
    assert file.read_bytes() == new
    fake.after("GET", r"big\.bin", lambda _: fake.outputs.write(NAME, "model", "big.bin", old))
    with pytest.raises(TargetError, match="changed while cloudtrain copied it"):
        service.download(REF, "model/big.bin", tmp_path / "again")
    assert not [path for path in (tmp_path / "again").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil"])
def test_names_of_files_are_not_trusted(
    fake: FakeAzure, finished: Job, service: AzureMLService, name: str, tmp_path: Path
) -> None:
    """A blob's name may hold anything; nothing is written outside of the folder, and nothing at all then."""
    fake.blobs.put(OUTPUTS, f"{CHECKPOINT}/{name}", b"evil")
    with pytest.raises(TargetError, match="outside"):
        service.download(REF, "checkpoint", tmp_path / "deep/got")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_links_do_not_lead_out(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """A link that stands in the folder is not followed out of it."""
    (tmp_path / "got").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "got/step-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="outside"):
        service.download(REF, "checkpoint", tmp_path / "got")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_something_in_the_way(finished: Job, service: AzureMLService, tmp_path: Path) -> None:
    """A folder where a file should be: an error that names it."""
    (tmp_path / "weights.pt").mkdir()
    with pytest.raises(TargetError, match=r"weights\.pt` cannot be written"):
        service.download(REF, "model", tmp_path)


def test_nothing_there_yet(service: AzureMLService, tmp_path: Path) -> None:
    """A job that has not begun has no model; the hint names what a run writes."""
    service.submit(plan_of(outputs=BODY))
    with pytest.raises(TargetError, match="wrote nothing to `model`") as caught:
        service.download(REF, "model/", tmp_path)
    assert (caught.value.exit_code, "`outputs/plots/`" in (caught.value.hint or "")) == (1, True)
    assert service.download(REF, "", tmp_path) == []


@pytest.mark.parametrize(
    ("path", "hint"),
    [("modle", suggested("model")), ("model/../../x", "model"), ("checkpoints", "checkpoint")],
)
def test_no_such_place(
    finished: Job, service: AzureMLService, path: str, hint: str, tmp_path: Path
) -> None:
    """An error that names the nearest."""
    with pytest.raises(UsageError) as caught:
        service.download(REF, path, tmp_path)
    assert hint in (caught.value.hint or "")


def test_another_default_datastore(
    fake: FakeAzure,
    finished: Job,
    service: AzureMLService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs without a place go there; the run history knows where that was."""
    fake.datastores.add(Datastore("mine", "mine", "sas"))
    fake.blobs.put("mine", f"azureml/{NAME}/plots/b.png", b"b")
    del fake.blobs.containers[OUTPUTS][f"azureml/{NAME}/plots/a.png"]
    uri = f"{LONG}/datastores/mine/paths/azureml/{NAME}/plots/"
    monkeypatch.setattr(run_history, "_output_uri", lambda job, output: uri)
    assert got(service.download(REF, "outputs/plots", tmp_path), tmp_path) == {"b.png": b"b"}


def test_a_place_in_a_storage_account(
    fake: FakeAzure, service: AzureMLService, tmp_path: Path
) -> None:
    """Not every output is in a datastore; what is no storage is named, with what to do."""
    uri = "wasbs://c@elsewhere.blob.core.windows.net/x"
    service.submit(
        plan_of(outputs={"far": {"jobOutputType": "uri_folder", "uri": "azureml:some-asset:3"}})
    )
    with pytest.raises(TargetError, match="cloudtrain cannot copy from"):
        service.download(REF, "outputs/far", tmp_path)
    assert place_of(uri, WORKSPACE) == BlobPlace(
        "https://elsewhere.blob.core.windows.net", "c", "x"
    )


def test_a_datastore_of_another_kind(
    fake: FakeAzure,
    finished: Job,
    service: AzureMLService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """File shares are no blobs, and the error says so."""
    described = fake.datastores._describe
    changed = {
        "properties": {"datastoreType": "AzureFile", "accountName": "a", "fileShareName": "s"}
    }
    monkeypatch.setattr(
        fake.datastores, "_describe", lambda datastore: described(datastore) | changed
    )
    with pytest.raises(TargetError, match="type `AzureFile`"):
        service.download(REF, "model", tmp_path)


PLACES = [
    ("azureml://datastores/d/paths/a/b/", DatastorePlace(WORKSPACE, "d", "a/b/")),
    ("azureml://datastores/d/paths/", DatastorePlace(WORKSPACE, "d", "")),
    ("azureml://datastores/d/ExperimentRun/dcid.x", DatastorePlace(WORKSPACE, "d", "ExperimentRun/dcid.x")),
    (f"{LONG}/datastores/d/paths/a", DatastorePlace(WORKSPACE, "d", "a")),
    (
        "azureml://subscriptions/S/resourcegroups/R/providers/Microsoft.MachineLearningServices/workspaces/W/datastores/d/paths/a",
        DatastorePlace(
            "/subscriptions/S/resourceGroups/R/providers/Microsoft.MachineLearningServices/workspaces/W", "d", "a"
        ),
    ),
    ("https://a.blob.core.windows.net/c/x/y%20z", BlobPlace("https://a.blob.core.windows.net", "c", "x/y z")),
    ("https://a.blob.core.windows.net/c/x?sv=1&sig=2", BlobPlace("https://a.blob.core.windows.net", "c", "x", "sv=1&sig=2")),
    ("abfss://fs@a.dfs.core.windows.net/x", BlobPlace("https://a.blob.core.windows.net", "fs", "x")),
]  # fmt: skip


@pytest.mark.parametrize(("uri", "expected"), PLACES)
def test_addresses(uri: str, expected: DatastorePlace | BlobPlace) -> None:
    """Each form that Azure ML writes and takes."""
    assert place_of(uri, WORKSPACE) == expected


@pytest.mark.parametrize(
    "uri",
    ["azureml:data:1", "http://a.blob.core.windows.net/c/x", "https://example.org/x", "./local"],
)
def test_no_addresses_of_files(uri: str) -> None:
    """Assets, other servers and folders of somebody's machine are not copied."""
    with pytest.raises(TargetError, match=re.escape(uri)):
        place_of(uri, WORKSPACE)


def test_places_hold_in_every_workspace() -> None:
    """The addresses of a run's outputs name their workspace, for a job elsewhere that reads them."""
    assert places_of({"properties": {"outputs": BODY}}, NAME, WORKSPACE) == {
        "model": f"{LONG}/datastores/workspaceblobstore/paths/azureml/{NAME}/model/",
        "outputs/plots": f"{LONG}/datastores/workspaceblobstore/paths/azureml/{NAME}/plots/",
        "outputs/table": f"{LONG}/datastores/workspaceblobstore/paths/tables/t.csv",
        "checkpoint": f"{LONG}/datastores/workspaceblobstore/paths/{CHECKPOINT}/",
    }


def test_logs_of_whoever_may_not_list_the_store(
    fake: FakeAzure, finished: Job, service: AzureMLService, tmp_path: Path
) -> None:
    """The run history's addresses open them."""
    assert len(service.download(REF, "logs", tmp_path)) == 2
    assert fake.received("*", "datastores") == []
    assert artifact(NAME, "user_logs/std_log_process_0.txt") in fake.blobs.containers[ARTIFACTS]
