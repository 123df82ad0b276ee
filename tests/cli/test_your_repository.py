"""Repositories as people have them, run unchanged: small stand-ins of the shapes in docs/guides/your-repository.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SAVE = "    os.makedirs(folder, exist_ok=True)\n    open(os.path.join(folder, 'model.pt'), 'w').write(text)\n"
HELPERS = f"import os\n\ndef save(folder, text):\n{SAVE}"

SETTINGS = """
[sagemaker]
region = "eu-west-1"
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"
[azureml]
subscription_id = "00000000-0000-0000-0000-000000000000"
resource_group = "rg"
workspace = "ws"
[slurm]
host = "login"
shared_dir = "/shared"
"""

FIELDS = (
    "environment.framework=pytorch",
    "environment.version=2.8",
    "resources.instance_type={sagemaker: ml.m5.xlarge, azureml: Standard_DS3_v2}",
)

DATA = (
    "inputs.data={local: ../data, sagemaker: s3://my-bucket/data, azureml: azureml:data:1, slurm: /data}",
    "command=ln -sfn ${{inputs.data}} ../data && python main.py --epochs 1",
    "entry_point=null",
)

SHAPES: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "options": (
        {"train.py": "import sys\nfrom helpers import save\nsave(sys.argv[2], 'options')\n"},
        ("train.py", "--out", "${{outputs.model}}", "--amp"),
        "model/",
    ),
    "values": (  # as in nanoGPT, which reads `--name=value` and a file with settings
        {
            "config/small.py": "steps = 3\n",
            "train.py": "import os, sys\nfrom helpers import save\nexec(open(sys.argv[1]).read())\n"
            "assert sys.argv[2:] == ['--lr=1e-3', '--compile=False'] and steps == 3\n"
            "assert int(os.environ.get('RANK', 0)) == 0\nsave('out', 'values')\n",
        },
        ("train.py", "config/small.py", "--lr=1e-3", "--compile=False"),
        "work/",
    ),
    "hydra": (
        {
            "src/train.py": "import sys\nsys.path.insert(0, '.')\nfrom helpers import save\n"
            "assert sys.argv[1:] == ['trainer=cpu', '+trainer.limit=3', \"tags=['a', 'b']\"], sys.argv\n"
            "save('logs/run', 'hydra')\n"
        },
        ("src/train.py", "trainer=cpu", "+trainer.limit=3", "tags=['a', 'b']"),
        "work/",
    ),
    "module": (
        {
            "src/mine/__init__.py": "",
            "src/mine/steps.py": HELPERS,
            "src/mine/train.py": "import sys\nfrom mine.steps import save\nfrom . import steps\nsave(sys.argv[1], 'module')\n",
        },
        ("-m", "mine.train", "${{outputs.model}}"),
        "model/",
    ),
    "data": (
        {"main.py": "from helpers import save\nsave('out', open('../data/text').read())\n"},
        (*(word for field in DATA for word in ("--set", field)), "main.py"),
        "work/",
    ),
}


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_repository_runs_as_it_is(
    cli: Cli, clean_environment: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs here and in both emulations, has a plan for every cloud, and its model comes back by `download`."""
    files, words, place = SHAPES[shape]
    repository = clean_environment / "repository"
    for name, text in {"helpers.py": HELPERS, "cloudtrain.toml": SETTINGS, **files}.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (clean_environment / "data").mkdir()
    (clean_environment / "data" / "text").write_text("data")
    monkeypatch.chdir(repository)
    fields = [word for field in FIELDS for word in ("--set", field)]
    for target in ("sagemaker", "azureml", "slurm"):
        planned = cli("plan", "--target", target, *fields, *words)
        assert planned.code == 0, planned.err
    for emulate in ((), ("--emulate", "sagemaker"), ("--emulate", "azureml")):
        ran = cli("submit", *emulate, *fields, *words)
        assert (ran.code, "succeeded" in ran.err) == (0, True), ran.err
        assert ("would lose" in ran.err) == (place == "work/")
        folder = clean_environment / f"copy-{'-'.join(emulate)}"
        assert cli("download", "last", place, "--to", str(folder)).code == 0
        assert [file.read_text() for file in folder.rglob("model.pt")] == [shape]
