"""Files and folders whose names show that they hold credentials. `secrets.py` judges the content."""

from __future__ import annotations

import re
from collections.abc import Iterable


def _by_name(names_of: dict[str, str]) -> dict[str, str]:
    return {name: what for what, names in names_of.items() for name in names.split()}


_NAMES = _by_name(
    {
        "an environment file": ".env .envrc",
        "an SSH private key": "id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk",
        "a password file": ".netrc _netrc .pgpass .my.cnf .mylogin.cnf .htpasswd .passwd-s3fs",
        "a git password file": ".git-credentials",
        "a package index password file": ".pypirc",
        "container registry credentials": ".dockercfg .dockerconfigjson",
        "cloud credentials": ".s3cfg .boto rclone.conf application_default_credentials.json .databrickscfg "
        ".terraformrc credentials.tfrc.json",
        "a vault token": ".vault-token",
        "an API key": ".comet.config kaggle.json",
        "cluster credentials": "kubeconfig",
        "secrets of Streamlit": "secrets.toml",
        "a shell history": ".bash_history .zsh_history .psql_history .mysql_history",
    }
)
_SUFFIXES = _by_name(
    {
        "a key or certificate": ".pem",
        "a private key": ".key .ppk",
        "a key store": ".p12 .pfx .jks .keystore",
        "a Kerberos key table": ".keytab",
        "a password database": ".kdb .kdbx",
        "a VPN profile": ".ovpn",
        "cluster credentials": ".kubeconfig",
        "a Terraform state, which holds passwords as plain text": ".tfstate",
        "cloud credentials": ".publishsettings",
    }
)
_FOLDERS = _by_name(
    {
        "cloud credentials": ".aws .azure .gcloud .oci .aliyun .databricks .terraform.d",
        "Terraform's own files": ".terraform",
        "cluster credentials": ".kube",
        "an SSH folder": ".ssh",
        "a key ring": ".gnupg",
        "a password store": ".password-store",
        "database credentials": ".snowsql .snowflake",
        "an API key": ".kaggle .huggingface",
    }
)
_PLACES = _by_name(
    {
        "container registry credentials": ".docker/config.json",
        "cloud credentials": ".config/gcloud .config/rclone",
        "a GitHub token": ".config/gh",
        "an API key": ".cache/huggingface",
        "a package registry token": ".cargo/credentials .cargo/credentials.toml .gem/credentials",
        "a password file": ".mlflow/credentials",
        "database credentials": ".dbt/profiles.yml",
    }
)
"""Pairs of names that mean credentials only together."""

_SUSPECT = re.compile(
    r"credentials(\.(json|ya?ml|toml|ini|cfg))?|secrets?\.(ya?ml|json|ini|cfg|env)|[^/]+\.(env|tfvars)|"
    r".*(client[-_]secret|service[-_]?account)[^/]*\.json",
    re.IGNORECASE,
)
"""Names that often mean a secret. Such files are reported, but not left out by default."""

_EXAMPLES = (".example", ".sample", ".template", ".dist")
_ENDINGS = tuple(_SUFFIXES)


def secret_name(path: str) -> tuple[str, str] | None:
    """Return what the file or folder at the path holds, and the pattern that matched; None for an ordinary name."""
    *_, folder, name = f"//{path}".split("/")
    lowered = name.lower()
    if name in _NAMES:
        return _NAMES[name], name
    if name in _FOLDERS:
        return _FOLDERS[name], f"{name}/"
    if f"{folder}/{name}" in _PLACES:
        return _PLACES[f"{folder}/{name}"], f"{folder}/{name}"
    if lowered.endswith(_ENDINGS):
        suffix = lowered[lowered.rindex(".") :]
        return _SUFFIXES[suffix], f"*{suffix}"
    if ".tfstate." in name:
        return _SUFFIXES[".tfstate"], "*.tfstate.*"
    if name.startswith(".env.") and not name.endswith(_EXAMPLES):
        return _NAMES[".env"], ".env.*"
    return None


def credentials_in(paths: Iterable[str]) -> dict[str, str]:
    """Return what the files at `paths` probably hold, judged by their names and by the names of the folders in the
    paths. Ordinary files are left out."""
    return {path: what for path in paths if (what := _credentials(path)) is not None}


def _credentials(path: str) -> str | None:
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        if match := secret_name("/".join(parts[max(length - 2, 0) : length])):
            return match[0]
    return "credentials" if _SUSPECT.fullmatch(parts[-1]) else None
