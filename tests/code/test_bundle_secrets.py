"""Credentials of all kinds are found in a bundle, ordinary code is left alone, and no value is ever shown."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.code.secrets import rule_set, secrets_in
from cloudtrain.code.suspects import LARGEST, searched_sizes, suspects
from cloudtrain.code.tree import Tree, scan
from cloudtrain.plans.plan import Finding, Level
from tests.code.credential_files import BASE64, HEX, Kind, Maker, kinds
from tests.code.findings import secret_findings
from tests.conftest import REPOSITORY
from tests.examples import examples

KINDS = [kind for seed in (1, 2) for kind in kinds(seed)]
PACKAGES = Path(sysconfig.get_paths()["purelib"])

ONLY_PERHAPS = {
    "comet", "mlflow", "kube token", "kubernetes secret", "ansible vault password", "secrets in yaml",
    "password in configuration", "password in python", "environment file under another name", "terraform variables",
    "jupyter",
}  # fmt: skip
"""Kinds that are in the bundle with a warning: nothing but a name says that the value is a secret."""


def tree_of(root: Path, path: str, content: str) -> Tree:
    """The bundle of a folder with one file."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content, newline="")
    return scan(root)


def found_in(root: Path, path: str, content: str) -> list[Finding]:
    """The findings about secrets for a folder with one file."""
    return secret_findings(tree_of(root, path, content))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_credential_is_left_out_or_found(kind: Kind, tmp_path: Path) -> None:
    """No kind passes in silence, and the finding shows nothing of what it found."""
    tree = tree_of(tmp_path, kind.path, kind.content)
    findings = secret_findings(tree)
    shown = repr(findings)
    assert not [value for value in kind.values if value in shown or value[-12:] in shown]
    if not any(entry.path == kind.path for entry in tree.entries):
        assert findings == []
        return
    (first, *_) = findings
    assert (first.code, first.level) == (
        ("CT304", Level.WARNING) if kind.name in ONLY_PERHAPS else ("CT301", Level.ERROR)
    )
    assert all(
        detail.startswith(f"{kind.path}:") for finding in findings for detail in finding.details
    )


INNOCENT = {
    "names of tokens": "TOKENIZERS_PARALLELISM=false\nMAX_TOKENS=4096\nPAD_TOKEN='<pad>'\nimage_token_index = 32000\n",
    "placeholders": "hf_xxxx\nHF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nAPI_KEY='your-api-key-here'\npassword: changeme\n",
    "examples": "# aws_access_key_id = AKIAIOSFODNN7EXAMPLE\n# aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n",
    "the surroundings": "key = os.environ['AWS_SECRET_ACCESS_KEY']\ntoken = getenv('HF_TOKEN_OF_THE_TEAM_2024')\n"
    "//registry.example.org/:_authToken=${NPM_TOKEN_FROM_THE_ENVIRONMENT_2}\nurl = f'https://{user}:{password}@host/x'\n",
    "hashes": "digest = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'\n"
    "git+https://github.com/wandb/wandb@528a1174aa96b214ba9f6f9935dbcaf6da0fec02\n"
    "torch==2.8.0 --hash=sha256:0be2864bf82fd8a6a0a8f6f5bf1f4bfbd3b4f8a6b3b8a3a6c9a3b1c4d5e6f708\n",
    "models and places": "model = 'NousResearch/Meta-Llama-3-8B-Instruct'\ndata = 's3://vision-2024/cifar10/train-00001-of-00004'\n"
    "image = '763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312-cu129'\n",
    "speaking of keys": "assert '-----BEGIN RSA PRIVATE KEY-----' in header\nraise ValueError('no PRIVATE KEY')\n",
    "addresses without a password": "postgres://user:pass@localhost/db\nhttp://localhost:8080/a@b\nredis://cache:6379/0\n",
    "a public key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJl3dIeudNqd0DPMRD6OIh65tjkxFNOtGGwWB5gCgPhk me@host\n",
}


@pytest.mark.parametrize("name", ["train.py", "config.yaml", "README.md"])
@pytest.mark.parametrize("case", INNOCENT)
def test_what_only_looks_like_a_secret_is_left_alone(case: str, name: str, tmp_path: Path) -> None:
    """No warning either."""
    assert found_in(tmp_path, name, INNOCENT[case]) == []


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        (REPOSITORY / "cloudtrain", "*.py"), (REPOSITORY / "training_scripts", "*"), (REPOSITORY / "examples", "*"),
        (REPOSITORY / "docs", "*"), (REPOSITORY / "bench", "*"), (PACKAGES / "pydantic", "*.py"), (PACKAGES / "typer", "*"),
        (PACKAGES / "rich", "*.py"), (PACKAGES / "boto3", "*"), (PACKAGES / "networkx", "*.py"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)  # fmt: skip
def test_ordinary_code_gives_no_alarm(folder: Path, pattern: str) -> None:
    """Megabytes of packages and of this repository: neither an error nor a warning."""
    alarms = {}
    for file in filter(Path.is_file, folder.rglob(pattern)):
        path, content = file.relative_to(folder).as_posix(), file.read_bytes()
        spans = suspects(content, path)
        if spans and (found := secrets_in(content, spans, path)):
            alarms[path] = found
    assert alarms == {}


@pytest.mark.parametrize("before", [0, 5_000, 3_000_000])
def test_a_secret_is_found_wherever_it_is_in_a_file(before: int, tmp_path: Path) -> None:
    """Behind the first kilobytes as at the start; the line is the right one."""
    value = Maker(before).of(HEX, 20, before="glpat-")
    lines = before // 50
    (finding,) = found_in(
        tmp_path, "a.py", ("# " + "x" * 47 + "\n") * lines + f"token = '{value}'\n"
    )
    assert finding.details == (f"a.py:{lines + 1}: gitlab-pat",)


@pytest.mark.slow
def test_of_a_huge_file_the_beginning_is_searched(tmp_path: Path) -> None:
    """Beyond 16 MiB nothing is looked at: a file of that size is data."""
    value = Maker(1).of(HEX, 20, before="glpat-")
    padding = "0123456789\n" * (LARGEST // 11)
    assert found_in(tmp_path / "first", "a.txt", f"{value}\n{padding}")
    assert not found_in(tmp_path / "last", "a.txt", f"{padding}\n\n\n\n\n\n{value}\n")


def test_of_much_data_a_sample_is_searched() -> None:
    """Of code and settings everything, and of data too where there is little: a file of data more than that has a share
    of its suffix's sample, and the first files have at least a kilobyte each."""
    mib = 1 << 20
    paths = [
        "train.py",
        "conf/a.yaml",
        "notes.txt",
        *(f"data/{number}.csv" for number in range(5000)),
        None,
    ]
    little = [mib, mib, mib, *([1000] * 5000), mib]
    much = [mib, mib, 50_000, *([40_000] * 5000), mib]
    assert searched_sizes(paths, little) == [LARGEST] * 5003 + [0]
    searched = searched_sizes(paths, much)
    assert searched[:3] == [LARGEST] * 3
    assert searched[3] == 1024
    assert 0 < sum(searched[3:]) <= 64 << 10
    assert searched_sizes(["a.bin", "b.BIN"], [200 * mib, mib]) == [32 << 10] * 2


def test_text_of_windows_is_searched(tmp_path: Path) -> None:
    """PowerShell writes UTF-16."""
    value = Maker(2).of(HEX, 20, before="glpat-")
    (tmp_path / "out.txt").write_text(f"first\r\n{value}\r\n", encoding="utf-16")
    (finding,) = secret_findings(scan(tmp_path))
    assert finding.details == ("out.txt:2: gitlab-pat",)


@pytest.mark.parametrize("mark", ["gitleaks:allow", "pragma: allowlist secret"])
def test_a_mark_allows_a_line(mark: str, tmp_path: Path) -> None:
    """What the line holds is no secret, says its author; the next line is judged by itself."""
    maker = Maker(3)
    first, second = (f"k = '{maker.of(HEX, 20, before='glpat-')}'" for _ in range(2))
    (finding,) = found_in(tmp_path, "a.py", f"{first}  # {mark}\n{second}\n")
    assert finding.details == ("a.py:2: gitlab-pat",)


def test_many_files_are_one_finding(tmp_path: Path) -> None:
    """The first is in the message, the others in the details, of which there is an end."""
    for number in range(60):
        (tmp_path / f"{number:02}.py").write_text(
            f"k = '{Maker(number).of(HEX, 20, before='glpat-')}'\n"
        )
    (finding,) = secret_findings(scan(tmp_path))
    assert (
        finding.message == "the bundle contains a secret (gitlab-pat): `00.py:1`, and 59 more files"
    )
    assert len(finding.details) == 41
    assert finding.details[-1] == "and 20 more"


def test_following_the_hint_ends_the_finding(tmp_path: Path) -> None:
    """Its line leaves the file out."""
    (finding,) = found_in(
        tmp_path, "conf/a b.py", f"k = '{Maker(4).of(BASE64, 40, before='glpat-')}'\n"
    )
    assert finding.hint is not None
    (tmp_path / ".cloudtrainignore").write_text(finding.hint.split("`")[1] + "\n")
    assert secret_findings(scan(tmp_path)) == []


plain = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=600)


@settings(max_examples=examples(100), deadline=None)
@given(before=plain, behind=plain, seed=st.integers(0, 10**6))
def test_a_token_is_found_in_any_text(before: str, behind: str, seed: int) -> None:
    """Whatever stands before and behind the line, and whatever else it finds there."""
    token = Maker(seed).of(HEX, 36, before="ghp_")
    content = f"{before}\nx = '{token}'\n{behind}\n".encode()
    found = secrets_in(content, suspects(content, "a.py"), "a.py")
    assert ("github-pat", before.count("\n") + 2) in [
        (secret.rule, secret.line) for secret in found
    ]


@settings(max_examples=examples(60), deadline=None)
@given(content=st.binary(max_size=5000), name=st.sampled_from(["a.py", "a.yaml", "a.bin"]))
def test_any_content_can_be_searched(content: bytes, name: str) -> None:
    """Spans are in order, apart and inside."""
    spans = suspects(content, name)
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert not edges or (edges[0] >= 0 and edges[-1] <= len(content))
    secrets_in(content, spans, name)


WHEEL = '    { url = "https://files.pythonhosted.org/packages/0a/1b/{HEX}/a-1.0.whl", hash = "sha256:{HASH}", size = 9 },\n'
ARCHIVE = WHEEL.replace("{HEX}", "0c" * 30).replace("{HASH}", "0123456789abcdef" * 4)


@pytest.mark.parametrize(
    "line",
    [
        ARCHIVE.replace("https://", "https://me:{}@"),
        ARCHIVE.replace("pythonhosted.org", "pythonhosted.org.{}.example"),
        ARCHIVE.replace('hash = "sha256:', 'password = "{}", hash = "sha256:'),
        ARCHIVE.replace("},", "},  # {}"),
        f'{ARCHIVE}source = {{{{ registry = "https://me:{{}}@host/simple" }}}}\n'.replace(
            "{ url", "{{ url"
        ),
        "    --hash=sha256:" + "01" * 32 + " {}\n",
        "    --hash=sha256:" + "01" * 32 + "\n--extra-index-url https://me:{}@host/simple\n",
    ],
)
def test_a_lock_hides_no_secret(line: str, tmp_path: Path) -> None:
    """Only whole lines that name public archives or hashes are not searched, of which a lock has thousands."""
    lock = "[[package]]\nname = 'a'\nwheels = [\n" + ARCHIVE * 50 + "{}]\n" + ARCHIVE * 50
    assert suspects(lock.replace("{}", "").encode(), "uv.lock") == []
    value = Maker(5).of(HEX, 36, before="ghp_")
    for name in ("uv.lock", "requirements.txt"):
        text = lock.replace("{}", line.replace("{}", value).replace("{{", "{").replace("}}", "}"))
        (finding,) = found_in(tmp_path / name, name, text)
        assert "github-pat" in finding.message


def test_every_rule_compiles_and_can_be_reached() -> None:
    """No rule is without a keyword, none of which has a capital letter, and no two have one name."""
    rules = {rule for of_keyword in rule_set().by_keyword.values() for rule in of_keyword}
    assert len(rules) > 200
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.pattern.groups >= rule.group
        assert rule.keywords
        assert all(word == word.lower() for word in rule.keywords)


@pytest.mark.skipif(
    importlib.util.find_spec("maskerlogger") is None, reason="the rules come from maskerlogger"
)
def test_the_rules_are_those_of_the_package() -> None:
    """The file is what the tool writes."""
    tool = [sys.executable, str(REPOSITORY / "tools" / "generate" / "secret_rules.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ordinary_code_loads_no_rules(tmp_path: Path) -> None:
    """A small job does not pay for two hundred rules."""
    (tmp_path / "train.py").write_text(
        (REPOSITORY / "training_scripts/digits_ddp/train.py").read_text()
    )
    code = (
        "import sys; from pathlib import Path; from cloudtrain.code.tree import scan; scan(Path(sys.argv[1]));"
        "print('cloudtrain.code.secrets' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import T5Tokenizer, T5ForConditionalGeneration\n",
        "train(tokenizer, T5ForConditionalGeneration )\n",
    ],
)
def test_names_in_python_code_are_no_values(tmp_path: Path, text: str) -> None:
    """A class beside a tokenizer is not its token; the same letters in quotes may be one."""
    assert found_in(tmp_path, "train.py", text) == []
    quoted = text.replace("T5ForConditionalGeneration", "'q5ForXk9dVtional7eneration'")
    assert [finding.code for finding in found_in(tmp_path, "quoted.py", quoted)] == ["CT304"]
