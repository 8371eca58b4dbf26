"""How a client dials: plainly, or with TLS, and whom it then trusts.

tls=False            plain connections
tls=True             certificates that this machine's authorities vouch for, with the names that are dialled
tls="trusted.pem"    certificates that those in the file vouch for; names are not looked at, for brokers are
                     dialled by the addresses they registered
tls=an SSLContext    as it says: certificates of one's own, or none asked for
"""

from __future__ import annotations

import os
import ssl

from hotfire.errors import ConfigError
from hotfire.net.tls_settings import TlsClientConfig, client_context

TlsChoice = bool | str | os.PathLike[str] | ssl.SSLContext


def tls_context(tls: TlsChoice, *, said: str = "tls=") -> ssl.SSLContext | None:
    """What to dial with, None for plain connections; ConfigError when that cannot be.

    `said` is how whoever asks has named the file: the error is to be in their words.
    """
    if tls is False:
        return None
    if tls is True:
        return ssl.create_default_context()
    if isinstance(tls, ssl.SSLContext):
        if tls.protocol is ssl.PROTOCOL_TLS_SERVER:
            raise ConfigError("tls: the SSLContext given is a server's; give one of PROTOCOL_TLS_CLIENT")
        return tls
    if not isinstance(tls, (str, os.PathLike)):
        raise ConfigError(
            f"tls={tls!r:.60} is {type(tls).__name__}; give True, a file of certificates to trust, or an "
            "SSLContext"
        )
    return client_context(
        TlsClientConfig(
            tls_enable=True, tls_client_auth_server=True, tls_client_trust_cert_path=os.fspath(tls)
        ),
        trust_said=said,
    )


def unverified() -> ssl.SSLContext:
    """Encrypted, and whoever answers is believed: as Java's clients do unless told otherwise."""
    context = client_context(TlsClientConfig(tls_enable=True))
    assert context is not None
    return context
