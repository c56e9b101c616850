"""An authority of the tests' own, which nobody trusts, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# https://cryptography.io/en/latest/x509/tutorial/#creating-a-ca-hierarchy


@attrs.frozen(kw_only=True)
class Certificate:
    """A server's certificate, its key, and the certificate of the authority that signed it, in files."""

    file: Path
    key: Path
    authority: Path

    def server(self) -> ssl.SSLContext:
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context

    def client(self) -> ssl.SSLContext:
        """For a client that trusts the authority."""
        return ssl.create_default_context(cafile=str(self.authority))


def certificate(folder: Path, *addresses: str) -> Certificate:
    """A certificate for IP addresses, by a new authority."""
    now = datetime.datetime.now(datetime.timezone.utc)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Authority of the tests")])
    until = now + datetime.timedelta(days=2)

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(authority_name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(until)

    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = {**dict.fromkeys(others, False), "decipher_only": False}
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = begun(authority_name, authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    authority = authority.add_extension(
        x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
    ).add_extension(identifier, critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)) for address in addresses])
    server = begun(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, addresses[0])]), key)
    server = server.add_extension(names, critical=False)
    server = server.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    made = Certificate(file=folder / "server.pem", key=folder / "server.key", authority=folder / "authority.pem")
    pem = serialization.Encoding.PEM
    made.authority.write_bytes(authority.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    made.file.write_bytes(server.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8
    made.key.write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return made
