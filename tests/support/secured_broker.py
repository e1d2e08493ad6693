"""A secured broker from local processes: who may do what is said by ACLs alone, and nothing is allowed by default.

Its plain listener on loopback is for the tests' own administration and for the outside observer: whoever comes by it
is the super user. Clients under test come by the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, the package only lacks __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from eos.local import LocalKafka
from eos.ops.check.grants import Grant
from tests.support.certificates import Authority, Certificate
from tests.support.own_broker import own_broker

_HEAP_MB = 384
_ASK_S = 15.0
_ITERATIONS = 4096  # SCRAM's least; the password is no secret worth more
_OAUTH_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SASL, MUTUAL = "SASL", "MUTUAL"
OAUTH = "OAUTH"  # tokens of OAUTHBEARER without a signature, over TLS: Kafka's own for trials
OLD, MISNAMED = "OLD", "MISNAMED"  # as SASL, with a certificate that has expired, or that is for another host


class User(NamedTuple):
    """Somebody who may log in, and nothing else yet."""

    name: str
    password: str

    @property
    def principal(self) -> str:
        return f"User:{self.name}"


class SecuredBroker:
    """One broker with listeners for SASL_SSL (SCRAM-SHA-512, OAUTHBEARER) and for mutual TLS; made by `secured_broker`."""

    def __init__(self, cluster: LocalKafka, authority: Authority) -> None:
        self.cluster = cluster
        self.authority = authority
        self.plain = cluster.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})

    def add_user(self, name: str, password: str) -> User:
        """Let somebody log in with SCRAM-SHA-512, or change the password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        self._alter(name, UserScramCredentialUpsertion(name, info, password.encode()))
        return User(name, password)

    def remove_user(self, name: str) -> None:
        """Let somebody log in no more."""
        self._alter(name, UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512))

    def grant(self, principal: str, grants: Iterable[Grant]) -> None:
        """Allow exactly these."""
        bindings = [
            binding
            for one in grants
            for operation in one.operations
            for binding in [_binding(AclBinding, principal, one, operation)]
        ]
        for future in self._admin.create_acls(bindings, request_timeout=_ASK_S).values():
            future.result(_ASK_S)

    def revoke(self, principal: str, grants: Iterable[Grant]) -> None:
        """Take these back."""
        filters = [
            _binding(AclBindingFilter, principal, one, operation)
            for one in grants
            for operation in one.operations
        ]
        for future in self._admin.delete_acls(filters, request_timeout=_ASK_S).values():
            assert future.result(_ASK_S), "there was no such ACL"

    def sasl(self, user: User, listener: str = SASL) -> dict[str, Any]:
        """Settings of a client that logs in as this user."""
        return {
            "kafka.bootstrap_servers": self.cluster.servers_at(listener),
            "kafka.security_protocol": "SASL_SSL",
            "kafka.sasl_mechanism": "SCRAM-SHA-512",
            "kafka.sasl_username": user.name,
            "kafka.sasl_password": user.password,
            "kafka.ssl_ca_file": str(self.authority.certificate),
        }

    def oauth(self, login: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a client that logs in by tokens, which these settings get."""
        return {
            "kafka.bootstrap_servers": self.cluster.servers_at(OAUTH),
            "kafka.security_protocol": "SASL_SSL",
            "kafka.sasl_mechanism": "OAUTHBEARER",
            "kafka.ssl_ca_file": str(self.authority.certificate),
            **login,
        }

    def mutual(self, certificate: Certificate) -> dict[str, Any]:
        """Settings of a client that shows this certificate."""
        return {
            "kafka.bootstrap_servers": self.cluster.servers_at(MUTUAL),
            "kafka.security_protocol": "SSL",
            "kafka.ssl_ca_file": str(self.authority.certificate),
            "kafka.ssl_certificate_file": str(certificate.certificate),
            "kafka.ssl_key_file": str(certificate.key),
        }

    def log(self) -> str:
        """What the broker has logged; its authorizer logs what it denies."""
        (broker,) = self.cluster.brokers
        return broker.log_path.read_text(errors="replace")

    def _alter(self, name: str, alteration: Any) -> None:
        futures = self._admin.alter_user_scram_credentials([alteration], request_timeout=_ASK_S)
        futures[name].result(_ASK_S)


@contextlib.contextmanager
def secured_broker(directory: Path) -> Iterator[SecuredBroker]:
    """Start one; it is gone when the block is left.

    Args:
        directory: where its files are.
    """
    authority = Authority(directory)
    here = ("IP:127.0.0.1", "DNS:localhost")
    certificates = {
        SASL: authority.issue("broker", *here),
        MUTUAL: authority.issue("broker-mutual", *here),
        OAUTH: authority.issue("broker-oauth", *here),
        OLD: authority.issue("broker-old", *here, expired=True),
        MISNAMED: authority.issue("broker-elsewhere", "DNS:kafka.example"),
    }
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",  # the plain listener's only principal
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    for listener, certificate in certificates.items():
        of_listener = f"listener.name.{listener.lower()}"
        properties[f"{of_listener}.ssl.keystore.type"] = "PEM"
        properties[f"{of_listener}.ssl.keystore.location"] = str(certificate.both)
        mutual = listener == MUTUAL
        properties[f"{of_listener}.ssl.client.auth"] = "required" if mutual else "none"
        if listener == OAUTH:
            properties[f"{of_listener}.sasl.enabled.mechanisms"] = "OAUTHBEARER"
            login = f'{_OAUTH_LOGIN} required unsecuredLoginStringClaim_sub="broker";'
            properties[f"{of_listener}.oauthbearer.sasl.jaas.config"] = login
            # So that a connection ends with its token (KIP-368).
            properties[f"{of_listener}.oauthbearer.connections.max.reauth.ms"] = "3600000"
        elif not mutual:
            login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            properties[f"{of_listener}.scram-sha-512.sasl.jaas.config"] = login
    protocols = {name: "SSL" if name == MUTUAL else "SASL_SSL" for name in certificates}
    with own_broker(directory, heap_mb=_HEAP_MB, properties=properties, listeners=protocols) as cluster:
        yield SecuredBroker(cluster, authority)


_ANY_HOST = "*"


def _binding(kind: Any, principal: str, grant: Grant, operation: str) -> Any:
    resources: Mapping[str, ResourceType] = {
        "TransactionalId": ResourceType.TRANSACTIONAL_ID,
        "Topic": ResourceType.TOPIC,
        "Group": ResourceType.GROUP,
        "Cluster": ResourceType.BROKER,
    }
    operations: Mapping[str, AclOperation] = {
        "Read": AclOperation.READ,
        "Write": AclOperation.WRITE,
        "Describe": AclOperation.DESCRIBE,
        "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
        "Alter": AclOperation.ALTER,
    }
    pattern = ResourcePatternType.PREFIXED if grant.is_prefix else ResourcePatternType.LITERAL
    return kind(
        resources[grant.resource],
        grant.name,
        pattern,
        principal,
        _ANY_HOST,
        operations[operation],
        AclPermissionType.ALLOW,
    )
