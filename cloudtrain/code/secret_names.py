"""Files and folders whose names show that they hold credentials. `secrets.py` judges the content."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAMES = {
    ".env": "an environment file",
    ".envrc": "an environment file",
    "id_rsa": "an SSH private key",
    "id_dsa": "an SSH private key",
    "id_ecdsa": "an SSH private key",
    "id_ecdsa_sk": "an SSH private key",
    "id_ed25519": "an SSH private key",
    "id_ed25519_sk": "an SSH private key",
    ".netrc": "a password file",
    "_netrc": "a password file",
    ".pgpass": "a password file",
    ".my.cnf": "a password file",
    ".mylogin.cnf": "a password file",
    ".htpasswd": "a password file",
    ".passwd-s3fs": "a password file",
    ".git-credentials": "a git password file",
    ".pypirc": "a package index password file",
    ".dockercfg": "container registry credentials",
    ".dockerconfigjson": "container registry credentials",
    ".s3cfg": "cloud credentials",
    ".boto": "cloud credentials",
    "rclone.conf": "cloud credentials",
    "application_default_credentials.json": "cloud credentials",
    ".databrickscfg": "cloud credentials",
    ".terraformrc": "cloud credentials",
    "credentials.tfrc.json": "cloud credentials",
    ".vault-token": "a vault token",
    ".comet.config": "an API key",
    "kaggle.json": "an API key",
    "kubeconfig": "cluster credentials",
    "secrets.toml": "secrets of Streamlit",
    ".bash_history": "a shell history",
    ".zsh_history": "a shell history",
    ".psql_history": "a shell history",
    ".mysql_history": "a shell history",
}
_SUFFIXES = {
    ".pem": "a key or certificate",
    ".key": "a private key",
    ".ppk": "a private key",
    ".p12": "a key store",
    ".pfx": "a key store",
    ".jks": "a key store",
    ".keystore": "a key store",
    ".keytab": "a Kerberos key table",
    ".kdb": "a password database",
    ".kdbx": "a password database",
    ".ovpn": "a VPN profile",
    ".kubeconfig": "cluster credentials",
    ".tfstate": "a Terraform state, which holds passwords as plain text",
    ".publishsettings": "cloud credentials",
}
_FOLDERS = {
    ".aws": "cloud credentials",
    ".azure": "cloud credentials",
    ".gcloud": "cloud credentials",
    ".oci": "cloud credentials",
    ".aliyun": "cloud credentials",
    ".databricks": "cloud credentials",
    ".terraform.d": "cloud credentials",
    ".terraform": "Terraform's own files",
    ".kube": "cluster credentials",
    ".ssh": "an SSH folder",
    ".gnupg": "a key ring",
    ".password-store": "a password store",
    ".snowsql": "database credentials",
    ".snowflake": "database credentials",
    ".kaggle": "an API key",
    ".huggingface": "an API key",
}
_PLACES = {
    ".docker/config.json": "container registry credentials",
    ".config/gcloud": "cloud credentials",
    ".config/gh": "a GitHub token",
    ".config/rclone": "cloud credentials",
    ".cache/huggingface": "an API key",
    ".cargo/credentials": "a package registry token",
    ".cargo/credentials.toml": "a package registry token",
    ".gem/credentials": "a package registry token",
    ".mlflow/credentials": "a password file",
    ".dbt/profiles.yml": "database credentials",
}
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
