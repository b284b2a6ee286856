"""Say how connections are encrypted: which certificates are trusted, and which one this client shows."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from zkrq.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TLS:
    """Files for TLS, in PEM; read again for each connection, so they may be replaced while the program runs.

    Raises ``ConfigError`` for a file that does not exist.
    """

    ca_certs: str | None = None
    """File with the certificates of the authorities to trust; None: the system's."""

    certfile: str | None = None
    """File with this client's certificate; None: it shows none."""

    keyfile: str | None = None
    """File with its key, not encrypted; None: it is in ``certfile``."""

    check_hostname: bool = True
    """Whether a server's certificate must name the host by which it is reached."""

    def __post_init__(self) -> None:
        for name in ("ca_certs", "certfile", "keyfile"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"there is no file {str(path)!r}, which {name} names")
        if self.keyfile is not None and self.certfile is None:
            raise ConfigError("keyfile is given without a certfile")

    def context(self) -> ssl.SSLContext:
        """Read the files.  Raises ``ssl.SSLError``, ``OSError``."""
        context = ssl.create_default_context(cafile=self.ca_certs)
        context.check_hostname = self.check_hostname
        if self.certfile is not None:
            context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)
        return context


def _no_password() -> str:
    """Refuse an encrypted key, for which OpenSSL would ask the terminal."""
    raise ssl.SSLError("the key is encrypted")


def read_tls(text: str) -> TLS:
    """Read ``ca_certs=/a.pem,certfile=/b.pem,keyfile=/c.pem,check_hostname=0``, or ``1`` for the system's authorities.

    Raises ``ValueError`` for another form, ``ConfigError`` for a file that does not exist.
    """
    if text.strip() == "1":
        return TLS()
    given: dict[str, str] = {}
    for part in text.split(","):
        name, found, value = part.strip().partition("=")
        if name not in TLS.__slots__ or not found or not value or name in given:
            raise ValueError(text)
        given[name] = value
    check = given.pop("check_hostname", "1")
    if check not in ("0", "1"):
        raise ValueError(text)
    return TLS(**given, check_hostname=check == "1")
