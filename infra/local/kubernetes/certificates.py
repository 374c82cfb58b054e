"""Throw-away certificates: one authority for a control plane's servers, its clients and its webhooks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = timedelta(days=3650)
"""Long: Kueue renews a certificate that ends within 90 days, and would do so with one that the API server does not know."""


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM texts."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """(certificate, key) as files NAME.crt and NAME.key; the key is for the owner alone."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        write_private(key, self.key)
        return certificate, key


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its private key in memory."""

    pair: Pair
    _certificate: x509.Certificate
    _key: rsa.RSAPrivateKey

    def server(self, *names: str) -> Pair:
        """For a server that is called by these DNS names or addresses."""
        return self._issue(names[0], (), names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """For a client whom the API server knows by user name and groups."""
        return self._issue(user, groups, (), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, name: str, groups: Sequence[str], names: Sequence[str], usage: x509.ObjectIdentifier) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        # Subject names end at 64 characters; a server is known by its alternative names.
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name[:64] if names else name, _validate=False)]
        attributes += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group, _validate=False) for group in groups]
        builder = (
            _builder(x509.Name(attributes), self._certificate.subject)
            .public_key(key.public_key())
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        return Pair(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))


def authority(*names: str) -> Authority:
    """A new one. `names` are alternative names of its own certificate: Kueue's rotator looks for the one it gave."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # RSA: that rotator reads no other key
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "moerl throw-away authority")])
    builder = (
        _builder(subject, subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    return Authority(Pair(_pem(certificate), _key_pem(key)), certificate, key)


def signing_key(folder: Path) -> tuple[Path, Path]:
    """(public, private) key files for service-account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public, private = folder / "service-account.pub", folder / "service-account.key"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    write_private(private, _key_pem(key))
    return public, private


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner can read."""
    path.touch(mode=0o600, exist_ok=True)
    path.write_bytes(content)


def _builder(subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative(name) for name in names]


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
