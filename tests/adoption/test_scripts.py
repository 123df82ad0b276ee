"""Scripts and notebooks that use an SDK, run to their end. A small botocore stands in for the real one; the
real SDKs are in tests/parity."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.adoption.test_requests import SAGEMAKER
from tests.cli.conftest import Cli, cli
from tests.code.credential_files import Maker

__all__ = ["cli"]

REQUEST = SAGEMAKER["est_byoc_plain"]

BOTOCORE = """\
class Meta:
    region_name = "eu-west-1"
class BaseClient:
    meta = Meta()
    def _make_api_call(self, operation, params):
        raise SystemExit("a call has left the script")
"""
CALL = f"""\
import json, sys
from botocore.client import BaseClient
client = BaseClient()
request = json.loads({json.dumps(json.dumps(REQUEST))})
"""
NO_REGION = "with us-east-1, because you have set no region"
SEND = 'client._make_api_call("CreateTrainingJob", request)\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small botocore."""
    place = tmp_path / "work"
    (place / "botocore").mkdir(parents=True)
    (place / "botocore" / "__init__.py").write_text("")
    (place / "botocore" / "client.py").write_text(BOTOCORE)
    return place


@pytest.fixture
def adopted(folder: Path) -> Callable[..., ct.Adoption]:
    """Adopt a script of this text."""

    def adopt(text: str, name: str = "job.py", **options: Any) -> ct.Adoption:
        (folder / name).write_text(text)
        return ct.adopt(folder / name, execute=True, **options)

    return adopt


def test_folders_beside_the_script_are_there(
    adopted: Callable[..., ct.Adoption], folder: Path
) -> None:
    """Those that its text names, and their code is found where it is; others stay away."""
    for name in ("shared-scripts", "environment", "data", "other"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "train.py").write_text("print(1)\n")
    text = 'import os\nrequest["Environment"] = {"a": str(os.path.exists("../shared-scripts/train.py")), '
    text += '"b": str(os.path.exists(os.path.join("..", "oth" + "er"))), '
    text += (
        '"c": str((pathlib.Path(__file__).parent.parent / "environment" / "train.py").exists()), '
    )
    text += '"d": os.path.abspath(os.path.join("..", "data"))}\n'
    found = adopted(CALL + text.replace("import os", "import os, pathlib") + SEND)
    assert found.job.environment.variables == {
        "a": "True",
        "b": "False",
        "c": "True",
        "d": "../data",
    }


def test_a_script_is_adopted(adopted: Callable[..., ct.Adoption]) -> None:
    """The request that it was about to send, and its arguments."""
    found = adopted(
        CALL + 'request["HyperParameters"] = {"epochs": sys.argv[1]}\n' + SEND, arguments=["7"]
    )
    assert found.equal
    assert found.job.hyperparameters == {"epochs": 7}
    assert found.settings["region"] == "eu-west-1"


def test_the_answers_are_those_of_an_account(adopted: Callable[..., ct.Adoption]) -> None:
    """A role that the script asks for is a placeholder, and the settings say so."""
    ask = 'request["RoleArn"] = client._make_api_call("GetRole", {"RoleName": "mine"})["Role"]["Arn"]\n'
    found = adopted(CALL + ask + SEND)
    assert found.settings["role"] == "arn:aws:iam::111122223333:role/mine"
    assert found.settings_text.startswith("# 111122223333 stands for your account")


def test_the_account_of_a_tuning_jobs_role_replaces_the_placeholder(
    adopted: Callable[..., ct.Adoption],
) -> None:
    """The role is in the definition of its training job."""
    text = """
owner = client._make_api_call("GetCallerIdentity", {})["Account"]
definition = {name: request[name] for name in ("AlgorithmSpecification", "ResourceConfig", "RoleArn", "StoppingCondition")}
definition |= {"StaticHyperParameters": request["HyperParameters"], "OutputDataConfig": {"S3OutputPath": f"s3://mine-{owner}"}}
client._make_api_call("CreateHyperParameterTuningJob", {
    "HyperParameterTuningJobName": "tune", "TrainingJobDefinition": definition,
    "HyperParameterTuningJobConfig": {
        "Strategy": "Random", "ResourceLimits": {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1},
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "validation:loss"},
        "ParameterRanges": {"CategoricalParameterRanges": [{"Name": "a", "Values": ["1", "2"]}]},
    },
})
"""
    found = adopted(CALL + text)
    owner = found.settings["role"].split(":")[4]
    assert owner != "111122223333"
    assert found.settings["output"] == f"s3://mine-{owner}"
    assert found.equal, [vars(item) for item in found.differences]


def test_the_code_is_found(adopted: Callable[..., ct.Adoption], folder: Path) -> None:
    """The folder whose files the script has uploaded is the job's; other code is unpacked beside the job file."""
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("print(1)\n")
    upload = f"""
request = json.loads({json.dumps(json.dumps(SAGEMAKER["pt_torchdist"]))})
import io, os, tarfile
tar = io.BytesIO()
if len(sys.argv) > 1: open("src/more.py", "w").write("")
with tarfile.open(fileobj=tar, mode="w:gz") as archive:
    for name in os.listdir("src"): archive.add("src/" + name, name)
bucket, _, key = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])[5:].partition("/")
tar.seek(0)
client._make_api_call("PutObject", {{"Bucket": bucket, "Key": key, "Body": tar}})
"""
    found = adopted(CALL + upload + SEND, folder=folder)
    assert found.equal
    assert (found.job.source_dir, found.code) == ("src", None)
    other = adopted(CALL + upload + SEND, arguments=["more"], folder=folder / "out")
    assert other.job.source_dir == "code"
    from cloudtrain.adoption.proof import write_adoption

    write_adoption(other, folder / "out")
    assert (folder / "out" / "code" / "more.py").exists()
    assert not (folder / "src" / "more.py").exists()
    (folder / "src").rename(folder / "code")
    own = adopted(CALL + upload.replace("src", "code") + SEND, folder=folder / "out")
    assert (own.job.source_dir, own.code) == ("../code", None)


UPLOAD = """
request["InputDataConfig"] = [
    {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": kind, "S3Uri": "s3://mine/" + place}}}
    for name, kind, place in (
        ("train", "S3Prefix", "data"), ("test", "S3Prefix", "test.csv"), ("made", "S3Prefix", "made"),
        ("listed", "ManifestFile", "list.manifest"),
    )
]
request["HyperParameters"] = {"index": "s3://mine/index"}
request["OutputDataConfig"]["S3OutputPath"] = "s3://mine/other"
for key, text in {"data/a": "1", "data/b/c": "2", "test.csv": "3", "made/x": "4", "list.manifest": "5",
                  "index/y": "6", "other/z": "7"}.items():
    client._make_api_call("PutObject", {"Bucket": "mine", "Key": key, "Body": text.encode()})
"""


def test_what_the_script_uploads_is_an_input_or_named(
    adopted: Callable[..., ct.Adoption], folder: Path, tmp_path: Path
) -> None:
    """Nothing else puts it there: the script's own run does, which the job replaces. What no input can hold is a
    difference, and what the request does not name stands in the verdict."""
    from cloudtrain.adoption.proof import write_adoption

    for name, text in {
        "here/data/a": "1",
        "here/data/b/c": "2",
        "here/test.csv": "3",
        "here/more": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found = adopted(CALL + UPLOAD + SEND, folder=tmp_path / "out")
    places = {name: (item.of("sagemaker"), item.type) for name, item in found.job.inputs.items()}
    assert places == {
        "train": ("../work/here/data", "uri_folder"), "test": ("../work/here/test.csv", "uri_file"),
        "made": ("./uploaded/3", "uri_folder"), "listed": ("s3://mine/list.manifest", "uri_folder"),
    }  # fmt: skip
    assert [item.path for item in found.differences] == [
        "s3://mine/list.manifest",
        "s3://mine/index",
    ]
    assert "it also uploads s3://mine/other/z" in found.kind
    write_adoption(found, tmp_path / "out")
    assert (tmp_path / "out" / "uploaded" / "3" / "x").read_text() == "4"
    plan = ct.plan(ct.load_job(tmp_path / "out" / "job.yaml"), "sagemaker")
    kept = {upload.destination: upload.kind for upload in plan.uploads}
    sent = [row["DataSource"]["S3DataSource"]["S3Uri"] for row in plan.request["InputDataConfig"]]
    assert sum(uri in kept or uri.rpartition("/")[0] in kept for uri in sent) == 3


def test_a_notebook_is_adopted(adopted: Callable[..., ct.Adoption]) -> None:
    """Magics are left out, and a cell that fails does not end the notebook."""
    written = [
        "name = 'made'",
        "%%writefile $name.py\nc",
        "%%writefile {name}.txt\na 'b'\n",
        "assert open('made.txt').read() == \"a 'b'\\n\"",
    ]
    check = f"{written.pop()}\nassert open('made.py').read() == 'c'\nchecked = True"
    cells = [
        "%pip install x\n!ls \\\n  -l\nfiles = !ls \\\n  | wc\npip install y\n1/0",
        "%%bash\nexit 1",
        "%%time\n" + CALL,
        "import no_such_package\nfrom no_such_package import x\nready = True",
        *written,
        check,
        "%%capture out\nready\nchecked\n" + SEND,
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})
    found = adopted(text, "job.ipynb")
    assert found.equal
    assert found.to_dict()["gaps"] == ["failed: cell 1, cell 4", "not run: cell 2"]
    kind = "the request that job.ipynb sends; failed: cell 1, cell 4; not run: cell 2; "
    assert found.kind == kind + NO_REGION


def test_a_failed_statement_ends_nothing_but_itself(adopted: Callable[..., ct.Adoption]) -> None:
    """The others of its cell run; the verdict names the cell."""
    cells = [
        "1/0\nready = True",
        CALL + "open('/no/such/file')\nrequest['Environment'] = {'ready': str(ready)}\n" + SEND,
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})
    found = adopted(text, "job.ipynb")
    assert found.job.environment.variables == {"ready": "True"}
    assert "failed: cell 1, cell 2;" in found.kind


def test_the_failure_that_mattered_is_named(adopted: Callable[..., ct.Adoption]) -> None:
    """A notebook without a job ends with that from which the failure of the job's creation follows."""
    cells = [
        "1/0",
        "parts = open('/no/such/file')",
        "estimator = len(parts)\nestimator.fit()",
        "undefined.deploy()",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})
    with pytest.raises(ct.CloudtrainError, match=r"cell 2: FileNotFoundError: .*/no/such/file"):
        adopted(text, "job.ipynb")


HOSTILE = {
    "swallows everything": "while True:\n    try:\n        import time; time.sleep(60)\n    except BaseException:\n        pass\n",
    "ignores signals": "import signal, time\nfor n in (1, 2, 15):\n    signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)\n",
    "forks away": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)\ntime.sleep(600)\n",
    "starts programs": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n",
    "floods": "import sys\nwhile True: sys.stdout.write('x' * 1000)\n",
}


def still_running() -> list[str]:
    """Programs of this test that sleep still."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.environ()
                .get("HOME", "")
                .startswith(tempfile.gettempdir() + "/cloudtrain-adopt-")
            ):
                found.append(" ".join(process.cmdline()))
    return [line for line in found if "time.sleep(600)" in line]


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.slow_after(1)
def test_a_hostile_script_ends(
    case: str,
    isolated: bool,
    adopted: Callable[..., ct.Adoption],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With the namespaces of Linux and without them, and nothing of it is left."""
    # the same test of another worker has its own
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not isolated:
        monkeypatch.setattr("cloudtrain.adoption.scripts._without_network", list)
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted("print('hello')\n" + HOSTILE[case], time_limit=3)
    assert caught.value.code == "CT984"
    assert still_running() == []


@pytest.mark.slow
def test_a_program_whose_variables_show_late_is_ended(
    adopted: Callable[..., ct.Adoption], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process has no variables for the moment in which it becomes another program."""
    import psutil

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("cloudtrain.adoption.scripts._without_network", list)
    environ, seen = psutil.Process.environ, set[int]()

    def environ_at_the_second_look(process: psutil.Process) -> dict[str, str]:
        found = environ(process)
        is_new = process.pid not in seen
        seen.add(process.pid)
        return {} if is_new else found

    monkeypatch.setattr(psutil.Process, "environ", environ_at_the_second_look)
    with pytest.raises(ct.CloudtrainError):
        adopted("print('hello')\n" + HOSTILE["starts programs"], time_limit=3)
    monkeypatch.setattr(psutil.Process, "environ", environ)
    assert still_running() == []


def test_a_job_in_a_swallowing_script_is_taken(adopted: Callable[..., ct.Adoption]) -> None:
    """Where the job is created, no handler sees an exception."""
    text = CALL + "try:\n    " + SEND + "except BaseException:\n    raise SystemExit('seen')\n"
    found = adopted(text)
    assert found.equal
    assert "failed" not in found.kind


def test_it_has_no_network_and_no_secrets(
    adopted: Callable[..., ct.Adoption],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    clean_environment: Path,
) -> None:
    """Neither the user's variables, nor their home, nor a connection; and what it writes is written to a copy."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    monkeypatch.setenv("MY_TOKEN", "mine")
    (clean_environment / ".aws").mkdir()
    (clean_environment / ".aws" / "credentials").write_text("mine")
    text = """
import os, socket
found = {"secret": os.environ["AWS_SECRET_ACCESS_KEY"], "token": os.environ.get("MY_TOKEN", ""),
         "aws": str(os.listdir(os.path.expanduser("~/.aws"))), "net": "open"}
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    found["net"] = str(error)
open("written.txt", "w").write("x")
open(os.path.expanduser("~/written.txt"), "w").write("x")
request["Environment"] = found
"""
    found = adopted(CALL + text + SEND)
    variables = found.job.environment.variables
    assert (variables["secret"], variables["token"], variables["aws"]) == ("none", "", "['config']")
    assert "without network access" in variables["net"]
    assert not (folder / "written.txt").exists()
    assert not (clean_environment / "written.txt").exists()


def test_it_has_the_users_regions_and_defaults(
    adopted: Callable[..., ct.Adoption], clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, a job would be called equal that has another region, no network and no key. Secrets stay away."""
    token = Maker(2).letters(34, before="hf_")
    texts = {
        ".aws/config": "[default]\nregion = eu-west-3\nsso_start_url = x\n[profile lab]\nregion = eu-north-1\nrole_arn = r\n",
        ".aws/credentials": "[other]\naws_access_key_id = mine\naws_secret_access_key = mine\n",
        ".config/sagemaker/config.yaml": f"SageMaker:\n  A: {token}\n  VpcConfig: {{Subnets: [subnet-1]}}\n",
    }
    for name, text in texts.items():
        (clean_environment / name).parent.mkdir(parents=True, exist_ok=True)
        (clean_environment / name).write_text(text)
    script = """
import os
names = (".aws/config", ".config/sagemaker/config.yaml")
request["Environment"] = {name[1:4]: open(os.path.join(os.environ["HOME"], name)).read() for name in names}
request["Environment"]["region"] = os.environ.get("AWS_DEFAULT_REGION", "")
"""
    found = adopted(CALL + script + SEND)
    variables = found.job.environment.variables
    assert (variables["region"], variables["con"]) == (
        "",
        "SageMaker:\n  VpcConfig: {Subnets: [subnet-1]}",
    )
    regions = configparser.ConfigParser()
    regions.read_string(variables["aws"])
    assert {name: regions[name].get("region") for name in regions.sections()} == {
        'profile "default"': "eu-west-3", 'profile "lab"': "eu-north-1", 'profile "other"': None
    }  # fmt: skip
    assert not any(word in variables["aws"] for word in ("mine", "role_arn", "sso"))
    place = clean_environment / ".config" / "sagemaker" / "config.yaml"
    assert found.kind.endswith(f"; with your AWS region and `{place}` without its secrets")
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert adopted(CALL + SEND).kind.endswith(f"; {NO_REGION} and `{place}` without its secrets")
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(
            "class ProfileNotFound(Exception): pass\nraise ProfileNotFound('The config profile (x) is missing')\n"
        )
    assert "~/.aws/config" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("raise ValueError('no data')\n", "no data"),
        ("print('all done')\n", "ended without creating a training job: all done"),
        ("def broken(:\n", "SyntaxError"),
        (
            CALL + 'client._make_api_call("CreateProcessingJob", {"ProcessingJobName": "p"})\n',
            "processing job",
        ),
    ],
)
def test_a_script_without_a_job(text: str, word: str, adopted: Callable[..., ct.Adoption]) -> None:
    """The last thing that it said is in the message."""
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(text)
    assert word in caught.value.message
    assert caught.value.code in ("CT981", "CT984")


def test_a_made_up_answer_may_be_a_list(adopted: Callable[..., ct.Adoption]) -> None:
    """A script takes its first item, and goes on with what that has."""
    stacks = 'client._make_api_call("DescribeStacks", {"StackName": "s"})["Stacks"]\n'
    outputs = '{each["OutputKey"]: each["OutputValue"] for each in stacks[0]["Outputs"]}\n'
    assert adopted(f"{CALL}stacks = {stacks}made = {outputs}{SEND}").equal
    with pytest.raises(ct.CloudtrainError, match="KeyError: 'SubnetId'"):
        adopted(f"{CALL}stacks = {stacks}made = {outputs}request['a'] = made['SubnetId']\n{SEND}")


UNSENDABLE = {
    "an empty id": ("AlgorithmSpecification", {"TrainingImage": "a", "TrainingInputMode": "File", "AlgorithmName": ""}),
    "a number too small": ("StoppingCondition", {"MaxRuntimeInSeconds": 0}),
    "another type": ("HyperParameters", {"epochs": 3}),
    "an unknown field": ("OutputDataConfig", {"S3OutputPath": "s3://bucket/a", "Path": "b"}),
    "a required field": ("OutputDataConfig", {}),
}  # fmt: skip


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_botocore_would_not_send_is_no_job(case: str, tmp_path: Path) -> None:
    """With the real one: the script fails there, so that nothing is equal to such a request."""
    pytest.importorskip("boto3")
    field, value = UNSENDABLE[case]
    script = tmp_path / "launch.py"
    text = (
        "import boto3, json\nclient = boto3.client('sagemaker', region_name='eu-west-1')\n"
        f"request = json.loads({json.dumps(json.dumps(REQUEST))})\n"
    )
    script.write_text(f"{text}client.create_training_job(**request)\n")
    assert ct.adopt(script, execute=True).equal
    changed = f"client.create_training_job(**{{**request, {field!r}: {value!r}}})\n"
    script.write_text(text + changed)
    with pytest.raises(ct.CloudtrainError, match="Parameter validation failed") as caught:
        ct.adopt(script, execute=True)
    assert caught.value.code == "CT984"


def test_it_is_asked_for(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and without `--yes` nothing is run, and the screen says what running means."""
    (folder / "job.py").write_text(CALL + SEND)
    refused = cli("adopt", str(folder / "job.py"))
    assert refused.code == 6  # a person has to say so
    assert "runs it with" in refused.err
    assert "--yes" in refused.err
    assert cli("adopt", str(folder / "job.py"), "--yes").code == 0
    missing = cli("adopt", str(folder / "job.py"), "--yes", "--python", "/no/python")
    assert missing.code == 2


def test_an_interpreter_of_its_own(cli: Cli, folder: Path) -> None:
    """`--python` names it."""
    (folder / "job.py").write_text(
        CALL + 'request["Environment"] = {"python": sys.executable}\n' + SEND
    )
    found = cli(
        "adopt",
        str(folder / "job.py"),
        "--yes",
        "--python",
        os.path.realpath(sys.executable),
        "--json",
    )
    assert json.loads(found.out)["job"]["environment"]["variables"]["python"] == os.path.realpath(
        sys.executable
    )


def test_the_copy_has_the_name_of_the_folder(folder: Path) -> None:
    """Azure's SDK names the experiment after it; paths below it are still the script's own."""
    place = folder.rename(folder.parent / 'Größe "x')
    text = 'import os\nrequest["Environment"] = {"a": os.path.basename(os.getcwd()), "b": os.path.abspath("train.py")}\n'
    (place / "job.py").write_text(CALL + text + SEND)
    found = ct.adopt(place / "job.py", execute=True)
    assert found.job.environment.variables == {"a": 'Größe "x', "b": "./train.py"}
