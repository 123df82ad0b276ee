"""What is put where something else is expected: values, texts, pieces of syntax, and files that are no plain files."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

WORDS: tuple[str, ...] = (
    "", " ", "\t", "\n", "\0", "\x1b[31m", "\r\n", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\U0001f600", "e\u0301",
    "\u202eabc", "null", "true", "yes", "~", "~nobody/x", ".", "..", "/", "//", "../../../etc/passwd", "a/../../b", "-",
    "--", "-x", "=", "a=b", "a b", "'", '"', "`", "\\", "$", "$HOME", "$(id)", "`id`", ";", "&", "|", "*", "?", "[", "]", "{",
    "}", "{}", "[]", "%", "%s", "{0}", "#", ":", "@", "0", "-1", "1e400", "nan", "inf", "0x10", "1_000", "0o7", "10e400h",
    "1h", "0s", "99999999999d", "1.5m", "64g", "0b", "999999t", "2.10", "9" * 5000, "a" * 300, "x" * 20_000, "./x", "x/",
    "${{inputs.train}}", "${{inputs.}}", "${{outputs.model}}", "${{checkpoint}}", "${{", "}}", "${{x}}", "${{ inputs.x }}",
    "run:last/model", "run:x/output/y", "run:", "run:x/../y", "s3://", "s3://b", "s3://b/p", "s3://B_/..", "s3:///x",
    "azureml:", "azureml:a:1", "azureml:a@latest", "azureml:a", "azureml://datastores/x/paths/y", "azureml://",
    "azureml://registries/r/models/m/versions/1", "https://x", "https://a.blob.core.windows.net/c/p?sig=x", "wasbs://c@a/x",
    "file:///dev/zero", "bundled:digits_ddp", "bundled:", "bundled:../x", "ml.p4d.24xlarge", "ml.g5.xlarge", "ml.nope",
    "Standard_ND96asr_v4", "standard_nc6", "A100-40GB", "H100", "rdma", "torch", "smddp", "smp", "deepspeed", "mpi",
    "horovod", "tensorflow", "none", "pytorch", "huggingface", "2.8", "2.8.0", "99.9", "1.13", "mount", "pipe", "fast_file",
    "fork", "sagemaker", "azureml", "local", "arn:aws:iam::1:role/x", "arn:", "eu-west-1", "us-gov-west-1", "cn-north-1",
    "PT1H", "P1D", "PT", "P" * 400, "Spot", "Basic", "uri_folder", "mltable", "custom_model", "literal", "model", "train.py",
    "run.sh", "notebook.ipynb", "nope.py", "code/train.py", "-x NCCL_DEBUG=INFO", "-x", "'unclosed", "--ipc=host", "kind",
    "processing", "training", "123456789012.dkr.ecr.us-west-2.amazonaws.com/x:latest", "mcr.microsoft.com/azureml/x:1",
    "loss=([0-9.]+)", "(", "(" * 300, "(a+)+$", "[a-", "(?P<x>.)(?P<x>.)",
)  # fmt: skip
"""Texts that mean something somewhere: to a shell, a path, a format, a service, a regular expression."""


def _nested(depth: int, kind: type) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 2, lambda: 1024, lambda: 1025,
    lambda: 10**6, lambda: 2**31, lambda: 2**63, lambda: 10**40, lambda: 10**4000, lambda: 0.0, lambda: -0.0,
    lambda: 1.5, lambda: 1e308, lambda: 5e-324, lambda: float("nan"), lambda: float("inf"), list, dict,
    lambda: [None], lambda: [[]], lambda: [{}], lambda: {"": ""}, lambda: {"a": None}, lambda: {"type": None},
    lambda: {"type": []}, lambda: {"type": {}}, lambda: {"sagemaker": None}, lambda: {"azureml": []},
    lambda: {"local": {"x": 1}}, lambda: _nested(20, list), lambda: _nested(90, dict), lambda: _nested(150, list),
    lambda: [str(number) for number in range(2000)], lambda: {f"k{number}": number for number in range(2000)},
    lambda: datetime.date(2026, 2, 28), lambda: datetime.datetime(2026, 2, 28, 12, 0), lambda: {"x" * 5000: 1},
)  # fmt: skip
"""Values of every type that a file can hold, the awkward ones of each."""

PIECES: tuple[bytes, ...] = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\t", b"\x85", b"\xe2\x80\xa8", b"\x1b[2J", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ",
    b"!!int ", b"!x ", b"---\n", b"...\n", b"%YAML 9.9\n", b"? ", b"- ", b"-", b": ", b":", b"{", b"}", b"[", b"]", b"[" * 200,
    b"{a: " * 200, b"- " * 200, b'"', b"'", b'"""', b"'''", b"|\n", b">\n", b"#", b",", b"=", b"[x]\n", b"[[x]]\n", b"a.b.c = 1\n",
    b"1e400", b"9" * 5000, b"0x" + b"f" * 5000, b".inf", b".nan", b"NaN", b"Infinity", b"2026-02-30", b"2026-02-28T25:00:00Z",
    b"12:30:45", b"\\ud800", b"\\u0000", b"\\x00", b"\\", b"\n", b"\n\n", b" ", b"null", b"true", b"~", b"y: &b [*b]\n",
    b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n",
)  # fmt: skip
"""Bytes that mean something to YAML, TOML, JSON or UTF-8."""


def word(rng: Random) -> str:
    """A hostile text."""
    return rng.choice(WORDS)


def value(rng: Random) -> Any:
    """A hostile value: text in half of the cases."""
    return word(rng) if rng.random() < 0.5 else rng.choice(VALUES)()


_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 64, 1000, 1024, 1025, 100_000, -1, 2**31, 2**40)


def number(rng: Random) -> int:
    """A whole number that may be too large or too small."""
    return rng.choice(_NUMBERS)


def like(rng: Random, value_: Any) -> Any:
    """A value of the same type in three of four cases, so that what reads the type accepts it."""
    if rng.random() < 0.25:
        return value(rng)
    if isinstance(value_, bool):
        return not value_
    if isinstance(value_, int):
        return number(rng)
    if isinstance(value_, float):
        return rng.choice((0.0, -0.0, 1e308, 5e-324, -1.5, 1e22, 0.1))
    return word(rng) if isinstance(value_, str) else value(rng)


def _fifo(path: Path) -> None:
    import os

    os.mkfifo(path)


def _socket(path: Path) -> None:
    import os
    import socket

    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(path.parent)  # the path of a socket has at most 108 bytes
        listening.bind(path.name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "socket": _socket,
    "folder": lambda path: path.mkdir(),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "full": lambda path: path.symlink_to("/dev/full"),
    "tty": lambda path: path.symlink_to("/dev/tty"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "sparse": _sparse,
    "empty": lambda path: path.touch(),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
}
"""What can lie where a plain file is expected."""
