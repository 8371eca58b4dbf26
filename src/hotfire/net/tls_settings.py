"""TLS as it is configured: the settings of servers and of those who dial, and the contexts they ask for.

Names are those of Apache's system properties and of its tls.properties. Unlike Apache's servers ours make no
certificate of their own: without one there is no TLS, and whoever asked for it is told at the start.
Owns no connection.
"""

from __future__ import annotations

import enum
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from hotfire.errors import ConfigError
from hotfire.settings import setting

log = logging.getLogger("hotfire.net")

CONFIG_FILE = "/etc/rocketmq/tls.properties"


class TlsMode(enum.Enum):
    """By the names Apache's servers know."""

    disabled = "plain connections only"
    permissive = "TLS and plain on one port"
    enforcing = "TLS only"


class ClientAuth(enum.Enum):
    """Whether clients show a certificate."""

    none = ssl.CERT_NONE
    optional = ssl.CERT_OPTIONAL
    require = ssl.CERT_REQUIRED


@dataclass(frozen=True, kw_only=True)
class TlsServerConfig:
    """What broker and name server have in common."""

    tls_server_mode: TlsMode = setting(  # noqa: RUF009  # it makes a field
        TlsMode.permissive,
        "disabled; permissive takes TLS and plain connections on one port; enforcing takes TLS only.",
        name="tls.server.mode",
    )
    tls_config_file: str = setting(
        CONFIG_FILE, "File with those of these settings that are given nowhere else.", name="tls.config.file"
    )
    tls_test_mode_enable: bool = setting(
        False, "A certificate made at the start; refused.", name="tls.test.mode.enable"
    )
    tls_server_cert_path: str | None = setting(
        None, "Certificate chain of this server, PEM; without it there is no TLS.", name="tls.server.certPath"
    )
    tls_server_key_path: str | None = setting(
        None, "Private key of that certificate, PEM.", name="tls.server.keyPath"
    )
    tls_server_key_password: str | None = setting(
        None, "Password of that key.", name="tls.server.keyPassword", secret=True
    )
    tls_server_need_client_auth: ClientAuth = setting(  # noqa: RUF009  # it makes a field
        ClientAuth.none,
        "Whether clients show a certificate: none, optional or require.",
        name="tls.server.need.client.auth",
    )
    tls_server_auth_client: bool = setting(
        False, "Without effect: a certificate that is shown is always verified.", name="tls.server.authClient"
    )
    tls_server_trust_cert_path: str | None = setting(
        None, "Certificates that vouch for those of clients, PEM.", name="tls.server.trustCertPath"
    )


@dataclass(frozen=True, kw_only=True)
class TlsClientConfig:
    """What a program has that dials others."""

    tls_enable: bool = setting(
        False, "Dial name servers with TLS; a slave its master, for tables.", name="tls.enable"
    )
    tls_client_auth_server: bool = setting(
        False, "Verify the certificates of those dialled.", name="tls.client.authServer"
    )
    tls_client_trust_cert_path: str | None = setting(
        None,
        "Certificates that vouch for them, PEM; those of this machine when absent.",
        name="tls.client.trustCertPath",
    )
    tls_client_cert_path: str | None = setting(
        None, "Certificate chain to show when asked for one, PEM.", name="tls.client.certPath"
    )
    tls_client_key_path: str | None = setting(
        None, "Private key of that certificate, PEM.", name="tls.client.keyPath"
    )
    tls_client_key_password: str | None = setting(
        None, "Password of that key.", name="tls.client.keyPassword", secret=True
    )


def server_context(config: TlsServerConfig) -> ssl.SSLContext | None:
    """What TLS connections are served with; None when there are to be none."""
    if config.tls_server_mode is TlsMode.disabled:
        return None
    if config.tls_test_mode_enable:
        raise ConfigError(
            "tls.test.mode.enable=true: no certificate is made here; set it to false, and "
            "tls.server.certPath and tls.server.keyPath to a certificate and its key"
        )
    if not config.tls_server_cert_path and not config.tls_server_key_path:
        if config.tls_server_mode is TlsMode.enforcing:
            raise ConfigError(
                "tls.server.mode=enforcing: there is no certificate, so nobody could connect; set "
                "tls.server.certPath and tls.server.keyPath"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_chain(
        context, "tls.server", config.tls_server_cert_path, config.tls_server_key_path,
        config.tls_server_key_password,
    )  # fmt: skip
    _ask_clients(context, config)
    return context


def client_context(
    config: TlsClientConfig, *, trust_said: str = "tls.client.trustCertPath="
) -> ssl.SSLContext | None:
    """What to dial with; None for a plain connection. `trust_said` is how the user named the trusted file."""
    if not config.tls_enable:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as in Apache: who holds the private authority's certificate is trusted
    if not config.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path:
        _load_trusted(context, trust_said, config.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if config.tls_client_cert_path or config.tls_client_key_path:
        _load_chain(
            context, "tls.client", config.tls_client_cert_path, config.tls_client_key_path,
            config.tls_client_key_password,
        )  # fmt: skip
    return context


def _ask_clients(context: ssl.SSLContext, config: TlsServerConfig) -> None:
    if config.tls_server_need_client_auth is ClientAuth.none:
        if config.tls_server_auth_client:
            log.warning(
                "tls.server.authClient=true is without effect: no client is asked for a certificate; set "
                "tls.server.need.client.auth=require"
            )
        return
    if not config.tls_server_trust_cert_path:
        raise ConfigError(
            f"tls.server.need.client.auth={config.tls_server_need_client_auth.name}: certificates of clients "
            "are always verified; set tls.server.trustCertPath to those that vouch for them"
        )
    _load_trusted(context, "tls.server.trustCertPath=", config.tls_server_trust_cert_path)
    context.verify_mode = config.tls_server_need_client_auth.value


def _load_chain(
    context: ssl.SSLContext, names: str, cert: str | None, key: str | None, password: str | None
) -> None:
    if not cert or not key:
        given, missing = ("keyPath", "certPath") if key else ("certPath", "keyPath")
        raise ConfigError(f"{names}.{given} is set and {names}.{missing} is not; give both")
    _readable(f"{names}.certPath=", cert)
    _readable(f"{names}.keyPath=", key)
    try:
        # never without a password: for want of one it would be asked for at the terminal
        context.load_cert_chain(path_of(cert), path_of(key), password=password or "")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{names}.certPath={cert} {names}.keyPath={key}: {_reason(error)}; give a certificate and its "
            f"key, both PEM, and {names}.keyPassword if the key has one; a key encrypted by an outdated "
            "cipher needs another: openssl pkcs8 -topk8 -v2 aes256"
        ) from None


def _load_trusted(context: ssl.SSLContext, said: str, path: str) -> None:
    _readable(said, path)
    try:
        context.load_verify_locations(path_of(path))
    except ssl.SSLError as error:
        raise ConfigError(f"{said}{path}: {_reason(error)}; give certificates, PEM") from None


def _readable(said: str, path: str) -> None:
    """ssl says of a file that cannot be opened which error it was, and not which file."""
    try:
        path_of(path).open("rb").close()
    except OSError as error:
        raise ConfigError(f"{said}{path}: {error.strerror}; give a file that can be read") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate or key is in it").replace("_", " ").lower()
    return str(error)


def path_of(path: str) -> Path:
    return Path(path).expanduser()
