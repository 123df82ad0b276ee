"""What a secret looks like: by the name of its file, and by the first bytes in it."""

from __future__ import annotations

import re

_NAMES = {
    ".env": "an environment file",
    ".envrc": "an environment file",
    "id_rsa": "an SSH private key",
    "id_dsa": "an SSH private key",
    "id_ecdsa": "an SSH private key",
    "id_ed25519": "an SSH private key",
    ".netrc": "a password file",
    "_netrc": "a password file",
    ".pgpass": "a password file",
    ".git-credentials": "a git password file",
    ".pypirc": "a package index password file",
    ".s3cfg": "cloud credentials",
    ".boto": "cloud credentials",
    "kaggle.json": "an API key",
    "kubeconfig": "cluster credentials",
}
_SUFFIXES = {
    ".pem": "a key or certificate",
    ".key": "a private key",
    ".ppk": "a private key",
    ".p12": "a key store",
    ".pfx": "a key store",
    ".jks": "a key store",
    ".keystore": "a key store",
    ".kdbx": "a password database",
}
_FOLDERS = {
    ".aws": "cloud credentials",
    ".azure": "cloud credentials",
    ".kube": "cluster credentials",
    ".ssh": "an SSH folder",
    ".gnupg": "a key ring",
}
_SUSPECT = re.compile(r"credentials(\.json)?|(client[-_]secret|service[-_]?account)[^/]*\.json", re.IGNORECASE)
"""Often a secret, and as often not: worth a finding, but not left out by default."""

_EXAMPLES = (".example", ".sample", ".template", ".dist")
_ENDINGS = tuple(_SUFFIXES)

HEAD = 8192
"""Bytes at the start of a file that are looked at."""
LARGEST = 1 << 20
"""Bytes of the largest file whose head is looked at: what people write by hand is small."""

_CONTENT = (
    (re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY"), "a private key"),
    (
        re.compile(rb"aws_secret_access_key[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])", re.IGNORECASE),
        "an AWS secret key",
    ),
    (re.compile(rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"), "an AWS access key id"),
    (re.compile(rb"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}"), "an Azure account key"),
    (re.compile(rb"_authToken\s*=\s*[^\s$]"), "a package registry token"),
    (re.compile(rb"(?<![A-Za-z0-9_])(?:gh[opsu]_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,})"), "an access token"),
)
_TELLTALES = tuple(
    b"PRIVATE KEY|ecret_acc|SECRET_ACC|AKIA|ASIA|AccessKey=|AccountKey=|_authToken|ghp_|gho_|ghs_|ghu_|hf_".split(b"|")
)
"""One of these is in every text that matches; a plain search for them is many times faster than the patterns."""


def secret_name(name: str) -> tuple[str, str] | None:
    """What the file or folder of that name holds, and the pattern that says so; None for an ordinary name."""
    if name in _NAMES:
        return _NAMES[name], name
    if name in _FOLDERS:
        return _FOLDERS[name], f"{name}/"
    if name.endswith(_ENDINGS):
        suffix = name[name.rindex(".") :]
        return _SUFFIXES[suffix], f"*{suffix}"
    if name.startswith(".env.") and not name.endswith(_EXAMPLES):
        return _NAMES[".env"], ".env.*"
    return None


def secret_path(path: str) -> str | None:
    """What the file at that path is likely to hold, by any part of its path; None for an ordinary file."""
    *folders, name = path.split("/")
    for part in (name, *folders):
        if found := secret_name(part):
            return found[0]
    return "cloud credentials" if _SUSPECT.fullmatch(name) else None


def secret_content(head: bytes) -> str | None:
    """What the first bytes of a file look like; None for anything else.

    Amazon's documented example keys (`...EXAMPLE`) are not secrets.
    """
    if not any(telltale in head for telltale in _TELLTALES):
        return None
    for pattern, what in _CONTENT:
        if any(not found[0].endswith(b"EXAMPLE") for found in pattern.finditer(head)):
            return what
    return None
