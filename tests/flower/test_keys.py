"""Certificates and keys."""

import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store

from fedmix import BadInput
from fedmix.flower.keys import make_keys


def test_the_servers_certificate_is_good_for_its_names_and_loopback_and_no_other(
    tmp_path: Path,
) -> None:
    keys = make_keys(tmp_path / "keys", ["learn.example.org", "192.0.2.7"], 2)
    authority, leaf = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (keys.ca, keys.certificate)
    )
    verifier = PolicyBuilder().store(Store([authority])).build_server_verifier
    assert verifier(x509.DNSName("learn.example.org")).verify(leaf, [])[0] == leaf
    for address in ("192.0.2.7", "127.0.0.1"):
        assert verifier(x509.IPAddress(ip_address(address))).verify(leaf, [])[0] == leaf
    with pytest.raises(x509.verification.VerificationError):
        verifier(x509.DNSName("other.example.org")).verify(leaf, [])
    others = make_keys(tmp_path / "others", ["learn.example.org"], 1)
    with pytest.raises(x509.verification.VerificationError):
        verifier(x509.DNSName("learn.example.org")).verify(
            x509.load_pem_x509_certificate(others.certificate.read_bytes()), []
        )


def test_private_keys_are_for_their_owner_alone_and_all_differ(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", ["localhost"], 3)
    private = [keys.node(k) for k in range(3)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (keys.key, *private))
    public = [load_ssh_public_key(path.with_suffix(".pub").read_bytes()) for path in private]
    for path, expected in zip(private, public, strict=True):
        key = load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == expected
    assert len({path.read_bytes() for path in private}) == 3


def test_keys_are_never_written_over(tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"], 1)
    with pytest.raises(BadInput, match="holds keys already"):
        make_keys(tmp_path, ["localhost"], 1)


@pytest.mark.parametrize("host", ["", "a b", "a\n", "bücher.example", "a" * 300])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadInput, match="is no name or address of a machine"):
        make_keys(tmp_path / "keys", ["localhost", host], 1)
    assert not (tmp_path / "keys").exists()


def test_the_commands_refuse_in_one_sentence(tmp_path: Path) -> None:
    command = ["federation", "run", "digits", "--algorithm", "globalmix", "--out", str(tmp_path)]
    said = subprocess.run(
        [Path(sys.executable).with_name("fedmix"), *command], capture_output=True, text=True
    )
    assert said.returncode == 2
    assert said.stderr.startswith("fedmix: GlobalMix needs raw samples of other clients")
    assert not list(tmp_path.iterdir())
