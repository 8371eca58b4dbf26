"""What TLS settings lead to: a context, none, or a refusal that says what to set."""

import ssl
from pathlib import Path

import pytest

from hotfire.errors import ConfigError
from hotfire.net.tls_settings import (
    TlsClientConfig,
    TlsServerConfig,
    client_context,
    server_context,
)
from hotfire.settings import from_properties, to_properties
from tests.certificates import AUTHORITY, HERE, SERVER_PAIRS, pair


def of(properties: dict[str, str]) -> TlsServerConfig:
    config, unknown = from_properties(TlsServerConfig, properties)
    assert not unknown
    return config


LOCKED = {"tls.server.certPath": pair("server")[0], "tls.server.keyPath": str(HERE / "locked.key")}
ASKING = SERVER_PAIRS | {"tls.server.need.client.auth": "require"}


def test_without_a_certificate_there_is_no_tls() -> None:
    """As it comes a server is plain; switched off, not even its files are looked at."""
    assert server_context(TlsServerConfig()) is None
    nowhere = {"tls.server.certPath": "/nowhere", "tls.server.keyPath": "/nowhere"}
    assert server_context(of(nowhere | {"tls.server.mode": "disabled"})) is None


def test_a_certificate_and_its_key_give_tls() -> None:
    """Permissive or enforcing; clients are asked for a certificate where the settings say so."""
    context = server_context(of(SERVER_PAIRS))
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert server_context(of(LOCKED | {"tls.server.keyPassword": "secret"})) is not None
    for auth, mode in (("optional", ssl.CERT_OPTIONAL), ("require", ssl.CERT_REQUIRED)):
        asking = ASKING | {"tls.server.need.client.auth": auth, "tls.server.trustCertPath": AUTHORITY}
        context = server_context(of(asking))
        assert context is not None
        assert context.verify_mode is mode


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (
            {"tls.server.mode": "enforcing"},
            "nobody could connect; set tls.server.certPath and tls.server.key",
        ),
        ({"tls.test.mode.enable": "true"}, "set it to false, and tls.server.certPath and tls.server.keyPath"),
        (SERVER_PAIRS | {"tls.test.mode.enable": "true"}, "no certificate is made here"),
        ({"tls.server.keyPath": "/k"}, r"tls\.server\.keyPath is set and tls\.server\.certPath is not"),
        ({"tls.server.certPath": "/c"}, r"tls\.server\.certPath is set and tls\.server\.keyPath is not"),
        (SERVER_PAIRS | {"tls.server.keyPath": "/no/key"}, "keyPath=/no/key: No such file or directory"),
        (SERVER_PAIRS | {"tls.server.certPath": "/no/cert"}, "certPath=/no/cert: No such file or directory"),
        (SERVER_PAIRS | {"tls.server.keyPath": pair("other")[1]}, "key values mismatch"),
        (
            SERVER_PAIRS | {"tls.server.keyPath": pair("server")[0]},
            "give a certificate and its key, both PEM",
        ),
        (LOCKED, r"tls\.server\.keyPassword if the key has one"),
        (LOCKED | {"tls.server.keyPassword": "wrong"}, r"tls\.server\.keyPassword if the key has one"),
        (ASKING, r"set tls\.server\.trustCertPath"),
        (ASKING | {"tls.server.trustCertPath": "/no/ca"}, "trustCertPath=/no/ca: No such file"),
        (ASKING | {"tls.server.trustCertPath": pair("server")[1]}, "give certificates, PEM"),
    ],
)
def test_settings_that_cannot_work_are_refused(properties: dict[str, str], said: str) -> None:
    """At the start, with the name of the setting and what it should be."""
    with pytest.raises(ConfigError, match=said) as refused:
        server_context(of(properties))
    assert "wrong" not in str(refused.value), "a password is nobody else's business"


def test_a_switch_that_asks_nobody_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """To verify clients without asking them for a certificate lets everybody in."""
    assert server_context(of(SERVER_PAIRS | {"tls.server.authClient": "true"})) is not None
    assert "set tls.server.need.client.auth=require" in caplog.text


def test_passwords_are_not_shown() -> None:
    """Whoever may look at the settings does not see them."""
    shown = to_properties(of(LOCKED | {"tls.server.keyPassword": "secret"}))
    assert "secret" not in shown.values()
    assert shown["tls.server.mode"] == "permissive"


def test_who_dials_takes_any_certificate_unless_told_otherwise(tmp_path: Path) -> None:
    """As Apache's; with authServer one that is vouched for, by the file given or by this machine's."""
    assert client_context(TlsClientConfig()) is None
    context = client_context(TlsClientConfig(tls_enable=True))
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE
    strict = TlsClientConfig(tls_enable=True, tls_client_auth_server=True)
    context = client_context(strict)
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    cert, key = pair("client")
    context = client_context(
        TlsClientConfig(
            tls_enable=True, tls_client_auth_server=True, tls_client_trust_cert_path=AUTHORITY,
            tls_client_cert_path=cert, tls_client_key_path=key,
        )
    )  # fmt: skip
    assert context is not None
    assert context.cert_store_stats()["x509"] == 1
    with pytest.raises(ConfigError, match=r"tls\.client\.certPath is set and tls\.client\.keyPath is not"):
        client_context(TlsClientConfig(tls_enable=True, tls_client_cert_path=cert))
