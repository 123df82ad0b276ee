"""What the checks learn about a bundle: secrets in it, and its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.bundle.findings import secret_findings, size_findings
from cloudtrain.bundle.tree import scan
from cloudtrain.plans import Finding, Level

MIB = 1 << 20
VALUE = "wJalrXUtnFEMIK7MDENGbPxRfiCYzq8Rk1LmN0pQ"


def fill(root: Path, files: dict[str, str]) -> Path:
    """Make the folder with these files in it."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def found(root: Path) -> list[Finding]:
    """The findings about secrets."""
    return secret_findings(scan(root))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n", "a private key"),
        ('{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0"}', "a private key"),
        (f"[default]\naws_secret_access_key = {VALUE}\n", "an AWS secret key"),
        (f'export AWS_SECRET_ACCESS_KEY="{VALUE}"\n', "an AWS secret key"),
        ("key_id = 'AKIAQ3EGUZ5BEXB4TZVP'\n", "an AWS access key id"),
        (f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={VALUE * 2}==;", "an Azure account key"),
        (f"//registry.example.org/:_authToken=npm_{VALUE}\n", "a package registry token"),
        ("token = 'hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'\n", "a Hugging Face token"),
        ("https://ghp_abcdefghijklmnopqrstuvwxyz0123456789@github.com/o/r\n", "a GitHub token"),
    ],
)
def test_a_secret_in_a_file_is_found_and_never_shown(tmp_path: Path, text: str, what: str) -> None:
    """The finding says which file and what kind, not the value."""
    (finding,) = found(fill(tmp_path, {"settings/prod.txt": text, "train.py": ""}))
    assert (finding.code, finding.level, finding.path) == ("CT301", Level.WARNING, ("source_dir",))
    assert finding.message == f"the bundle would carry what looks like {what}: `settings/prod.txt`"
    assert finding.details == (f"settings/prod.txt: {what}",)
    assert finding.hint is not None
    assert "`/settings/prod.txt`" in finding.hint
    assert not any(word in repr(finding) for word in (VALUE, "AKIAQ", "abcdef", "MIIE"))


@pytest.mark.parametrize(
    "text",
    [
        "client = boto3.client('s3', aws_secret_access_key=os.environ['KEY'])\n",
        "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n"[
            :45
        ],
        "def test(): assert 'PRIVATE KEY' in header_of_the_certificate_file_name\n",
        "AbstractFactoryBeanSingletonProxyHolder = hf_hub_download(repo_id='bigscience/bloom')\n",
        "digest = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'\n",
        "//registry.example.org/:_authToken=${NPM_TOKEN_FROM_THE_ENVIRONMENT}\n",
    ],
)
def test_code_that_speaks_of_secrets_is_no_secret(tmp_path: Path, text: str) -> None:
    """Names, documented examples and references to the environment give no finding."""
    assert found(fill(tmp_path, {"train.py": text})) == []


def test_a_secret_by_name_is_found_where_a_rule_brought_it_back(tmp_path: Path) -> None:
    """By default keys and `.env` are left out and there is nothing to find; a `!` rule is answered with a finding."""
    fill(tmp_path, {"train.py": "", ".env": "A=1\n", "id_rsa": "x", "tls/server.key": "x", "ca.pem": "x"})
    assert found(tmp_path) == []
    (tmp_path / ".cloudtrainignore").write_text("!.env\n!id_rsa\n!*.key\n")
    (finding,) = found(tmp_path)
    assert finding.details == (
        ".env: an environment file",
        "id_rsa: an SSH private key",
        "tls/server.key: a private key",
    )
    assert finding.message.endswith("`.env`, and 2 more files")


@pytest.mark.parametrize(
    "name", ["credentials", "gcp/credentials.json", "my-service-account.json", "client_secret_1.json"]
)
def test_names_that_are_often_a_secret_are_found_but_not_left_out(tmp_path: Path, name: str) -> None:
    """They may as well be data, so they stay in the bundle with a warning."""
    fill(tmp_path, {name: "{}"})
    (finding,) = found(tmp_path)
    assert finding.details == (f"{name}: cloud credentials",)


def test_the_bundle_itself_gives_no_finding(tmp_path: Path) -> None:
    """cloudtrain's own files hold nothing that looks like a secret."""
    assert found(fill(tmp_path, {"train.py": "print(1)\n"})) == []


def make(path: Path, size: int) -> None:
    """A file of that size that takes no room on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def test_a_small_bundle_has_no_size_finding(tmp_path: Path) -> None:
    """Code is small; nobody hears of it."""
    assert size_findings(scan(fill(tmp_path, {"train.py": ""}))) == []


def test_a_notable_size_is_a_warning(tmp_path: Path) -> None:
    """From 50 MiB, with the largest files, largest first, and the line that leaves the largest out."""
    make(tmp_path / "weights/big.bin", 40 * MIB)
    make(tmp_path / "small.bin", 11 * MIB)
    (finding,) = size_findings(scan(tmp_path))
    assert (finding.code, finding.level) == ("CT303", Level.WARNING)
    assert finding.details == ("weights/big.bin (40 MiB)", "small.bin (11 MiB)")
    assert finding.hint is not None
    assert "`/weights/big.bin` in `.cloudtrainignore`" in finding.hint.replace("` in `", "` in `")


def test_beyond_the_limit_is_an_error_that_a_rule_of_its_hint_ends(tmp_path: Path) -> None:
    """Many files in one folder: the hint names the folder, and following it ends the finding."""
    for number in range(20):
        make(tmp_path / f"data/{number}.bin", MIB)
    fill(tmp_path, {"train.py": "1"})
    (finding,) = size_findings(scan(tmp_path), limit=10 * MIB)
    assert (finding.code, finding.level) == ("CT302", Level.ERROR)
    assert "; the limit is 10 MiB" in finding.message
    assert len(finding.details) == 10
    assert finding.hint is not None
    line = finding.hint.split("`")[1]
    assert line == "/data/"
    (tmp_path / ".cloudtrainignore").write_text(line + "\n")
    assert size_findings(scan(tmp_path), limit=10 * MIB) == []


def test_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    """Exactly at the limit there is no error; one byte more is one."""
    fill(tmp_path, {"train.py": "1"})
    tree = scan(tmp_path)
    assert size_findings(tree, limit=tree.identity.size) == []
    assert [finding.code for finding in size_findings(tree, limit=tree.identity.size - 1)] == ["CT302"]
