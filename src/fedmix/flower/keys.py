"""Certificates and keys of a federation: TLS for all, and a key to authenticate each node.

A key does not say which client its node is: the node's `partition-id` does.
"""

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmix.core.errors import BadInput
from fedmix.core.validation import shown

DAYS = 365
HOST = re.compile(r"[\w.:*-]{1,253}", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1")  # a SuperLink's own processes connect to these


@dataclass(frozen=True)
class Keys:
    """Paths of a federation's certificates and keys in one folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate of the authority, which every machine gets."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    def node(self, client: int) -> Path:
        """A client's private key; the public key ends in .pub."""
        return self.folder / f"client-{client}.key"


def make_keys(folder: Path, hosts: list[str], clients: int) -> Keys:
    """Make an authority, a server certificate and a key pair for each client, and write them.

    The authority's own key is used once and never written.

    Args:
        folder: Where to write them; made if it does not exist.
        hosts: Host names and addresses of the server; loopback is added.
        clients: Number of clients.

    Returns:
        The paths of the files.

    Raises:
        BadInput: The folder already holds keys, or there is no client, no host or no such host.
    """
    keys = Keys(folder)
    if keys.ca.exists():
        raise BadInput(
            f"{folder} holds keys already; choose another folder, or delete it to make new ones"
        )
    if clients < 1 or not hosts:
        raise BadInput("a federation needs at least one client and one host name of its server")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise BadInput(f"the server's host {shown(host)} is no name or address of a machine")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmix federation")])
    root = _certificate(issuer, issuer, authority.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), True
    )
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = root.add_extension(usage, True).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    leaf = _certificate(subject, issuer, server.public_key()).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), True
    )
    leaf = leaf.add_extension(
        x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]),
        False,
    )
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    leaf = leaf.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
    )
    pem = serialization.Encoding.PEM
    _write(keys.ca, root.sign(authority, hashes.SHA384()).public_bytes(pem), 0o644)
    _write(keys.certificate, leaf.sign(authority, hashes.SHA384()).public_bytes(pem), 0o644)
    _write(keys.key, _private(server, serialization.PrivateFormat.PKCS8), 0o600)
    for client in range(clients):
        private = ec.generate_private_key(ec.SECP384R1())
        public = private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        _write(keys.node(client), _private(private, serialization.PrivateFormat.OpenSSH), 0o600)
        _write(
            keys.node(client).with_suffix(".pub"), public + f" client-{client}\n".encode(), 0o644
        )
    return keys


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    named = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    dated = named.not_valid_before(now - timedelta(minutes=5)).not_valid_after(
        now + timedelta(days=DAYS)
    )
    return dated.serial_number(x509.random_serial_number())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Create a file with this mode, so that others cannot read a private key even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
