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
_SUSPECT = re.compile(r"credentials(\.json)?|.*(client[-_]secret|service[-_]?account)[^/]*\.json", re.IGNORECASE)
"""Often a secret, and as often not: worth a finding, but not left out by default."""

_EXAMPLES = (".example", ".sample", ".template", ".dist")
_ENDINGS = tuple(_SUFFIXES)

HEAD = 4096
"""Bytes at the start of a file that are looked at."""
LARGEST = 1 << 20
"""Bytes of the largest file whose head is looked at: what people write by hand is small."""

_AWS_SECRET = rb"(?i:secret_access_key)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
_CONTENT = tuple(
    (tuple(words.split(b"|")), re.compile(pattern), what)
    for words, pattern, what in (
        (b"PRIVATE KEY", rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY", "a private key"),
        (b"secret_access_key|SECRET_ACCESS_KEY", _AWS_SECRET, "an AWS secret key"),
        (b"AKIA|ASIA", rb"(?<![A-Z0-9])A[KS]IA[A-Z0-9]{16}(?![A-Z0-9])", "an AWS access key id"),
        (b"AccessKey=|AccountKey=", rb"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}", "an Azure account key"),
        (b"_authToken", rb"_authToken\s*=\s*\w{20,}", "a package registry token"),
        (b"ghp_|gho_|ghs_|ghu_", rb"(?<!\w)gh[opsu]_[A-Za-z0-9]{36}", "a GitHub token"),
        (b"hf_", rb"(?<!\w)hf_[A-Za-z0-9]{30,}", "a Hugging Face token"),
    )
)
"""Words of which one is in every text that the pattern can match, the pattern, and what it finds."""

_VALUE = b"A" * 20
_CLASSES = bytes(65 if re.match(rb"[A-Za-z0-9+/]", bytes([byte])) else 32 for byte in range(256))
"""Every value above is, or comes before, a run of at least 20 of these characters, which most code has not: one
quick search settles most files, and there are thousands."""


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
    if _VALUE not in head.translate(_CLASSES):
        return None
    for words, pattern, what in _CONTENT:
        if any(word in head for word in words):
            values = [found[0] for found in pattern.finditer(head)]
            if any(not value.endswith(b"EXAMPLE") for value in values):
                return what
    return None
