"""Throw-away certificates for secured brokers and their clients, by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.patience import PATIENCE_S

_DAYS, _EXPIRED_DAYS = 2, -1
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
OPENSSL = shutil.which("openssl")


class Certificate(NamedTuple):
    """A certificate (PEM), its private key (PKCS#8, PEM), and both in one file, as a broker wants them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority of this test run.

    Args:
        directory: where its files are.
        name: its common name, and the beginning of its files' names.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        own = self._own = self._files(name)
        files = ["-keyout", str(own.key), "-out", str(own.certificate)]
        _openssl("req", "-x509", *_KEY, *files, *_subject(name), "-days", str(_DAYS))

    @property
    def certificate(self) -> Path:
        """What clients and brokers trust."""
        return self._own.certificate

    def issue(
        self, name: str, *hosts: str, expired: bool = False, password: str | None = None
    ) -> Certificate:
        """A certificate for a common name.

        Args:
            name: the common name; a broker takes its holder for the principal ``User:CN=<name>``.
            hosts: what a broker with it is reached by, ``IP:127.0.0.1`` for example.
            expired: whether its time is over.
            password: encrypts the private key.
        """
        made = self._files(name)
        request = made.certificate.with_suffix(".request")
        extensions = ["-addext", f"subjectAltName={','.join(hosts)}"] if hosts else []
        _openssl(
            "req", "-new", *_KEY, "-keyout", str(made.key), "-out", str(request), *_subject(name), *extensions
        )
        signer = ["-CA", str(self._own.certificate), "-CAkey", str(self._own.key), "-copy_extensions", "copy"]
        days = ["-days", str(_EXPIRED_DAYS if expired else _DAYS)]
        _openssl("x509", "-req", "-in", str(request), "-out", str(made.certificate), *signer, *days)
        made.both.write_text(made.key.read_text() + made.certificate.read_text())
        if password is not None:
            # PBES2, OpenSSL's own default, is what Java's Kafka client cannot read.
            arguments = ["-topk8", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{password}"]
            encrypted = made.key.with_suffix(".encrypted.pem")
            _openssl("pkcs8", *arguments, "-in", str(made.key), "-out", str(encrypted))
            return made._replace(key=encrypted)
        return made

    def _files(self, name: str) -> Certificate:
        stem = str(self._directory / name)
        return Certificate(*(Path(f"{stem}{suffix}") for suffix in (".crt", ".key", ".both.pem")))


def _subject(name: str) -> list[str]:
    return ["-subj", f"/CN={name}"]


def _openssl(*arguments: str) -> None:
    subprocess.run(
        [str(OPENSSL), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
