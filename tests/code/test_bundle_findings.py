"""What the checks learn about a bundle: secrets in it, and its size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.code.tree import Tree, scan
from cloudtrain.plans.plan import Finding, Level
from cloudtrain.rules import values
from tests.code.findings import findings, secret_findings, size_findings

MIB = 1 << 20


def named(tree: Tree, target: str) -> list[Finding]:
    """What is said about names that the target cannot carry."""
    return findings(tree, "CT306", target=target)


def fill(root: Path, files: dict[str, str]) -> Path:
    """Make the folder with these files in it."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def found(root: Path) -> list[Finding]:
    """The findings about secrets."""
    return secret_findings(scan(root))


def test_a_secret_by_name_is_found_where_a_rule_brought_it_back(tmp_path: Path) -> None:
    """By default keys and `.env` are left out and there is nothing to find; a `!` rule is answered with a warning."""
    fill(
        tmp_path,
        {"train.py": "", ".env": "A=1\n", "id_rsa": "x", "tls/server.key": "x", "ca.pem": "x"},
    )
    assert found(tmp_path) == []
    (tmp_path / ".cloudtrainignore").write_text("!.env\n!id_rsa\n!*.key\n")
    (finding,) = found(tmp_path)
    assert (finding.code, finding.level) == ("CT304", Level.WARNING)
    assert finding.details == (
        ".env: an environment file, by its name",
        "id_rsa: an SSH private key, by its name",
        "tls/server.key: a private key, by its name",
    )
    assert (
        finding.message
        == "the bundle may contain a secret (an environment file, by its name): `.env`, and 2 more files"
    )


@pytest.mark.parametrize(
    "path",
    [
        ".docker/config.json", "home/.config/gcloud/x.db", "terraform.tfstate", "a/prod.tfstate.backup", "svc.keytab",
        "TLS/SERVER.PEM", "x.PublishSettings", ".cargo/credentials.toml", "secrets.toml", ".terraform/x",
    ],
)  # fmt: skip
def test_files_that_hold_credentials_are_left_out(tmp_path: Path, path: str) -> None:
    """By one name or by two, in capitals as well."""
    fill(tmp_path, {"train.py": "", path: "x"})
    assert [
        entry.path for entry in scan(tmp_path).entries if not entry.path.startswith("cloudtrain/")
    ] == ["train.py"]
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "path", ["config.json", ".docker/Dockerfile", "gcloud/deploy.py", "profiles.yml", "state.py"]
)
def test_near_misses_of_credentials_are_kept(tmp_path: Path, path: str) -> None:
    """Of two names that belong together one says nothing."""
    fill(tmp_path, {path: "x"})
    assert path in [entry.path for entry in scan(tmp_path).entries]
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "credentials",
        "gcp/credentials.json",
        "my-service-account.json",
        "client_secret_1.json",
        "secrets.yaml",
        "prod.env",
    ],
)
def test_names_that_are_often_a_secret_are_found_but_not_left_out(
    tmp_path: Path, name: str
) -> None:
    """They may as well be data, so they stay in the bundle with a warning."""
    fill(tmp_path, {name: "{}"})
    (finding,) = found(tmp_path)
    assert finding.details == (f"{name}: credentials, by its name",)


def test_the_bundle_itself_gives_no_finding(tmp_path: Path) -> None:
    """cloudtrain's own files hold nothing that looks like a secret."""
    assert found(fill(tmp_path, {"train.py": "print(1)\n"})) == []


@pytest.mark.parametrize(
    "name",
    [
        "two\nlines.py",
        "tab\there",
        "escape\x1b[2J",
        "c1\x9b",
        "del\x7f",
        os.fsdecode(b"\xff.bin"),
        "end.",
        "a./b",
        "x" * 255,
    ],
)
def test_names_that_only_an_archive_carries(tmp_path: Path, name: str) -> None:
    """On this machine and on SageMaker they arrive as they are; Azure ML's blobs cannot have them."""
    fill(tmp_path, {"train.py": "", name: "x"})
    tree = scan(tmp_path)
    assert named(tree, "local") == named(tree, "sagemaker") == []
    (finding,) = named(tree, "azureml")
    assert (finding.code, finding.level) == ("CT306", Level.ERROR)
    assert (finding.message + str(finding.hint) + "".join(finding.details)).isprintable()
    assert finding.hint is not None
    if len(name) < 100:  # a long line is not shown whole
        (tmp_path / ".cloudtrainignore").write_text(finding.hint.split("`")[1] + "\n")
        assert named(scan(tmp_path), "azureml") == []


@pytest.mark.parametrize("name", ["ü.py", "a b", "a\u202eb", "x" * 254, "...a", "'\"$(id)"])
def test_names_that_every_target_carries(tmp_path: Path, name: str) -> None:
    """Whatever is text."""
    fill(tmp_path, {name: "x"})
    assert [
        finding
        for target in ("local", "sagemaker", "azureml")
        for finding in named(scan(tmp_path), target)
    ] == []


def test_a_path_that_leaves_no_room(tmp_path: Path) -> None:
    """It can be read here, and not be unpacked into a folder of a run."""
    path = "/".join(["d" * 250] * 15 + ["e" * 60])
    fill(tmp_path, {"train.py": "", path: "x"})
    (finding,) = named(scan(tmp_path), "local")
    assert "whose path is too long" in finding.message
    assert len(finding.message) < 300


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


def test_beyond_the_limit_is_an_error_that_a_rule_of_its_hint_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many files in one folder: the hint names the folder, and following it ends the finding."""
    monkeypatch.setattr(values, "LIMIT", 10 * MIB)
    for number in range(20):
        make(tmp_path / f"data/{number}.bin", MIB)
    fill(tmp_path, {"train.py": "1"})
    (finding,) = size_findings(scan(tmp_path))
    assert (finding.code, finding.level) == ("CT302", Level.ERROR)
    assert "; the limit is 10 MiB" in finding.message
    assert len(finding.details) == 10
    assert finding.hint is not None
    line = finding.hint.split("`")[1]
    assert line == "/data/"
    (tmp_path / ".cloudtrainignore").write_text(line + "\n")
    assert size_findings(scan(tmp_path)) == []


def test_the_limit_itself_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly at the limit there is no error; one byte more is one."""
    fill(tmp_path, {"train.py": "1"})
    tree = scan(tmp_path)
    monkeypatch.setattr(values, "LIMIT", tree.identity.size)
    assert size_findings(tree) == []
    monkeypatch.setattr(values, "LIMIT", tree.identity.size - 1)
    assert [finding.code for finding in size_findings(tree)] == ["CT302"]
