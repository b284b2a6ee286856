"""Certificates for tests, made with openssl: two authorities, a server, clients to let in and clients to keep out."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

AVAILABLE = shutil.which("openssl") is not None

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """A folder with ``<name>.pem`` and ``<name>.key``."""

    folder: Path

    def __call__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")


def make(folder: Path) -> Certificates:
    """The authorities ``ca`` and ``other``; of ``ca`` the ``server`` (of 127.0.0.1, and ``elsewhere`` of another host),
    ``client`` and ``expired``; of ``other`` the ``stranger``."""

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    signs = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # which Python asks for since 3.13
    for name in ("ca", "other"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
        run("req", "-x509", *KEY, *made, *signs)
    for name, issuer, host, days in (
        ("server", "ca", "IP:127.0.0.1", "2"),
        ("elsewhere", "ca", "DNS:elsewhere.example.org", "2"),
        ("client", "ca", "DNS:client", "2"),
        ("expired", "ca", "DNS:client", "-1"),
        ("stranger", "other", "DNS:client", "2"),
    ):
        san = f"subjectAltName={host}"
        run("req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", "-addext", san)
        signed = ("-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-CAcreateserial", "-copy_extensions", "copy")
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-days", days, *signed)
    for name in ("server", "elsewhere"):  # ZooKeeper reads key and certificate from one file
        key, pem = folder / f"{name}.key", folder / f"{name}.pem"
        (folder / f"{name}-both.pem").write_text(key.read_text() + pem.read_text())
    return Certificates(folder)
