"""A throw-away authority and the certificate for localhost that it signed, valid for a day.

Two certificates, not one: Python 3.13 verifies strictly, and takes no certificate for its own authority.
"""

from __future__ import annotations

import datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple


class Files(NamedTuple):
    """PEM files: what a client trusts, and what a server shows and has."""

    authority: Path
    chain: Path


def write_certificate(folder: Path) -> Files:
    """Make both certificates in the folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    authority_name, name = _name("cloudtrain tests: authority"), _name("localhost")
    authority = (
        _builder(authority_name, authority_name, authority_key, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(authority_key, _sha256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    own = (
        _builder(name, authority_name, key, authority_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, _sha256())
    )
    files = Files(folder / "authority.pem", folder / "server.pem")
    files.authority.write_bytes(_pem(authority))
    files.chain.write_bytes(_key_pem(key) + _pem(own))
    return files


def _builder(subject: Any, issuer: Any, key: Any, issuer_key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.timezone.utc)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issued_by, critical=False)
    )


def _usage(*, sign_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign_certificates, key_cert_sign=sign_certificates, crl_sign=sign_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sha256() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    data: bytes = certificate.public_bytes(Encoding.PEM)
    return data


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data
