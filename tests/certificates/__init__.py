"""Certificates that vouch for nothing but tests; `make.sh` tells how they came to be."""

from pathlib import Path

HERE = Path(__file__).parent
AUTHORITY = str(HERE / "authority.pem")


def pair(name: str) -> tuple[str, str]:
    """The files of a certificate and its key: `server`, `other` or `client`."""
    return str(HERE / f"{name}.pem"), str(HERE / f"{name}.key")


SERVER_PAIRS = {"tls.server.certPath": pair("server")[0], "tls.server.keyPath": pair("server")[1]}
"""As properties, for a broker or a name server."""
