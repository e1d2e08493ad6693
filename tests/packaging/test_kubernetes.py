"""The manifests: valid for Kubernetes, and true of this code: its settings, its images, its exit codes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import latest_version, validate

from eos.cli import options
from eos.exits import ExitCode
from eos.job import Declaration
from eos.references import load_named
from eos.runner.stopping import KILL_MARGIN_S
from eos.settings import Settings
from eos.settings.catalogue import Catalogue
from eos.settings.ordinal import parse_ordinal
from tests.support.eos_lines import accept

_REPOSITORY = Path(__file__).parents[2]
_KUBERNETES = _REPOSITORY / "docker/kubernetes"
_OLDEST = "1.29"
_SECRETS = "/run/secrets/kafka"
_CONTAINER_END_S = 5  # what Python and the container need to end at least
_VARIABLES = set(Catalogue(Settings).variables())

Manifest = dict[str, Any]


def _manifests() -> Iterator[Manifest]:
    for path in sorted(_KUBERNETES.glob("*.yaml")):
        yield from filter(None, yaml.safe_load_all(path.read_text()))


ALL = list(_manifests())


def _one(kind: str, name: str) -> Manifest:
    (found,) = [one for one in ALL if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


STATEFUL_SET = _one("StatefulSet", "refunds")
CRON_JOB = _one("CronJob", "refunds-batch")
PODS: dict[str, Manifest] = {
    "refunds": STATEFUL_SET["spec"]["template"],
    "refunds-batch": CRON_JOB["spec"]["jobTemplate"]["spec"]["template"],
}
of_each_pod = pytest.mark.parametrize("name", list(PODS))


def _container(name: str) -> Manifest:
    (container,) = PODS[name]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def _dockerfile(image: str) -> str:
    return (_REPOSITORY / "docker" / image.removeprefix("eos-").partition(":")[0] / "Dockerfile").read_text()


def _environment_of(dockerfile: str) -> dict[str, str]:
    return dict(re.findall(r"^\s+(?:ENV )?([A-Z_]+)=([^\s\\]+)", dockerfile, flags=re.MULTILINE))


def _settings(name: str, tmp_path: Path) -> Settings:
    """The settings of the pod: its ConfigMap and its variables, with secrets in the place of the mounted ones."""
    for file in ("password", "ca.crt"):
        (tmp_path / file).write_text("-----BEGIN anything")
    ((file_name, text),) = _one("ConfigMap", name)["data"].items()
    config = tmp_path / file_name
    config.write_text(text.replace(_SECRETS, str(tmp_path)))
    environment = {
        variable: value
        for variable, value in _environment_of(_dockerfile(_container(name)["image"])).items()
        if variable.startswith("EOS_")
    }
    for variable in _container(name).get("env", ()):
        environment[variable["name"]] = variable.get("value") or f"{name}-3"
    return Settings.load(config, environ=environment)


@pytest.mark.parametrize("version", [_OLDEST, latest_version()])
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    for manifest in ALL:
        validate(manifest, version, strict=True)


@of_each_pod
def test_settings_of_a_pod_load_and_have_the_group_of_the_settings_beside_the_job(
    name: str, tmp_path: Path
) -> None:
    """A manifest with another group would begin the input anew, beside the one that runs already."""
    ((file_name, text),) = _one("ConfigMap", name)["data"].items()
    beside = tomllib.loads((_REPOSITORY / "conf" / file_name).read_text())
    assert _settings(name, tmp_path).group == tomllib.loads(text)["group"] == beside["group"]


@of_each_pod
def test_every_variable_is_a_setting(name: str) -> None:
    container = _container(name)
    manifest = {one["name"] for one in container.get("env", ())}
    image = {one for one in _environment_of(_dockerfile(container["image"])) if one.startswith("EOS_")}
    assert image
    assert manifest | image <= _VARIABLES


@of_each_pod
def test_command_exists_and_its_settings_file_is_mounted(name: str) -> None:
    container = _container(name)
    arguments = list(container["args"])
    if 'ENTRYPOINT ["eos"]' not in _dockerfile(container["image"]):
        assert arguments.pop(0) == "eos"
    accept(arguments)
    reference = next(word for word in arguments if re.fullmatch(r"[\w.]+:\w+", word))
    kind: type[Declaration] = Declaration  # type: ignore[type-abstract] # it is only asked whether an object fits
    assert load_named(reference, _REPOSITORY, kind, "job").name == name

    config = Path(arguments[arguments.index("--config") + 1])
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in PODS[name]["spec"]["volumes"]}
    config_map = volumes[mounts[str(config.parent)]]["configMap"]["name"]
    assert config.name in _one("ConfigMap", config_map)["data"]


@of_each_pod
def test_every_secret_file_of_the_settings_is_mounted(name: str) -> None:
    ((_, text),) = _one("ConfigMap", name)["data"].items()
    kafka = tomllib.loads(text)["kafka"]
    files = {Path(value) for key, value in kafka.items() if key.endswith("_file")}
    mounts = {one["mountPath"]: one["name"] for one in _container(name)["volumeMounts"]}
    volumes = {one["name"]: one for one in PODS[name]["spec"]["volumes"]}
    mounted = {
        Path(path, item["path"])
        for path, volume in mounts.items()
        for item in volumes[volume].get("secret", {}).get("items", ())
    }
    assert files
    assert files <= mounted
    assert not {key for key in kafka if key.endswith("password")}  # a ConfigMap is no place for it


@of_each_pod
def test_pod_has_no_rights_and_a_read_only_root(name: str) -> None:
    pod, container = PODS[name]["spec"], _container(name)
    (user,) = re.findall(r"^USER (\d+):\d+$", _dockerfile(container["image"]), flags=re.MULTILINE)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(user) != 0
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_grace_period_covers_that_of_the_settings_and_what_the_parent_does_behind_it(tmp_path: Path) -> None:
    """Kubernetes must never be the one who kills: its SIGKILL would leave a transaction open."""
    grace_s = _settings("refunds", tmp_path).shutdown.grace_s
    given_s = PODS["refunds"]["spec"]["terminationGracePeriodSeconds"]
    assert given_s >= grace_s + KILL_MARGIN_S + _CONTAINER_END_S


def test_pod_takes_its_number_from_its_name(tmp_path: Path) -> None:
    (ordinal,) = [one for one in _container("refunds")["env"] if one["name"] == "EOS_ORDINAL"]
    assert ordinal["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    name = STATEFUL_SET["metadata"]["name"]
    assert [parse_ordinal(f"{name}-{number}") for number in (0, 3, 12)] == [0, 3, 12]
    assert _settings("refunds", tmp_path).ordinal == 3


def test_ports_are_those_of_the_image_and_of_the_settings_beside_the_job() -> None:
    container = _container("refunds")
    (port,) = container["ports"]
    image = _environment_of(_dockerfile(container["image"]))
    beside = tomllib.loads((_REPOSITORY / "conf/refunds.toml").read_text())
    (service_port,) = _one("Service", "refunds")["spec"]["ports"]
    (rule,) = _one("NetworkPolicy", "refunds")["spec"]["ingress"]
    assert {
        int(image["EOS_OBSERVE__HTTP_PORT"]),
        beside["observe"]["http_port"],
        service_port["port"],
        rule["ports"][0]["port"],
        int(PODS["refunds"]["metadata"]["annotations"]["prometheus.io/port"]),
    } == {port["containerPort"]}
    assert service_port["targetPort"] == port["name"]
    assert image["EOS_OBSERVE__HTTP_HOST"] == "0.0.0.0"  # noqa: S104 - a probe comes from outside the pod


def test_probes_ask_the_right_paths_and_give_the_start_its_time() -> None:
    container = _container("refunds")
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["httpGet"]["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert all(probe["httpGet"]["port"] == container["ports"][0]["name"] for probe in probes.values())
    startup_s = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
    assert startup_s >= 2 * options.PREFLIGHT_S


def test_what_selects_pods_selects_these() -> None:
    for kind, name, path in (
        ("StatefulSet", "refunds", ("selector", "matchLabels")),
        ("Service", "refunds", ("selector",)),
        ("PodDisruptionBudget", "refunds", ("selector", "matchLabels")),
        ("NetworkPolicy", "refunds", ("podSelector", "matchLabels")),
        ("NetworkPolicy", "refunds-batch", ("podSelector", "matchLabels")),
    ):
        selector: Any = _one(kind, name)["spec"]
        for part in path:
            selector = selector[part]
        assert selector
        assert selector.items() <= PODS[name]["metadata"]["labels"].items()
    service = _one("Service", STATEFUL_SET["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"


def test_batch_is_tried_again_only_where_that_helps() -> None:
    job = CRON_JOB["spec"]["jobTemplate"]["spec"]
    (final,) = [one["onExitCodes"] for one in job["podFailurePolicy"]["rules"] if "onExitCodes" in one]
    assert final["containerName"] == _container("refunds-batch")["name"]
    assert set(map(ExitCode, final["values"])) == {
        ExitCode.CONFIGURATION,
        ExitCode.FENCED,
        ExitCode.POISON,
        ExitCode.OFFSET_GAP,
    }
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert CRON_JOB["spec"]["concurrencyPolicy"] == "Forbid"


def test_an_update_replaces_pods_that_do_not_start() -> None:
    # With OrderedReady the variable of the first start (docs/guides/deploying.md) would reach no pod.
    assert STATEFUL_SET["spec"]["podManagementPolicy"] == "Parallel"


def test_the_commands_of_the_pages_name_what_the_manifests_have() -> None:
    pages = [
        *_REPOSITORY.glob("docs/guides/*.md"),
        *_REPOSITORY.glob("docs/operations/*.md"),
        *_KUBERNETES.glob("*.yaml"),
    ]
    commands = [
        line for page in pages for line in page.read_text().splitlines() if re.match(r"[\s#]*kubectl ", line)
    ]
    named = {found for line in commands for found in re.findall(r"(statefulset|cronjob)/(\S+)", line)}
    assert named == {("statefulset", "refunds"), ("cronjob", "refunds-batch")}
    variables = {
        found
        for line in commands
        if " set env " in line
        for found in re.findall(r"(EOS_[A-Z_]+)(?==|-)", line)
    }
    assert variables
    assert variables <= _VARIABLES
    secrets = [line for line in commands if " create secret " in line]
    assert secrets
    (kafka,) = [one["secret"] for one in PODS["refunds"]["spec"]["volumes"] if "secret" in one]
    for line in secrets:
        assert f"generic {kafka['secretName']} " in line
        assert re.findall(r"--from-file=([^=]+)=", line) == [one["key"] for one in kafka["items"]]
