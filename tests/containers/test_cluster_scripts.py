"""The scripts behind `make up` where it cannot work, and the certificates that they make; no engine is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.compose import CERTIFICATES
from tests.support.patience import PATIENCE_S

_UP = CERTIFICATES.with_name("up")
_BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(_BASH is None, reason="there is no bash here")


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_BASH), str(script), *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **variables},
        text=True,
        timeout=PATIENCE_S,
    )


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_without_docker_make_up_says_what_to_install(tmp_path: Path) -> None:
    for program in ("dirname", "id"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    done = run(_UP, PATH=str(tmp_path))
    assert done.returncode == 1
    assert (
        done.stderr == "make up: no docker on the PATH. Fix: install Docker Engine with its Compose plugin\n"
    )


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker command here")
def test_without_an_engine_make_up_says_so_and_makes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    done = run(_UP, DOCKER_HOST=f"unix://{tmp_path}/absent.sock", CLUSTER_DIRECTORY=str(directory))
    assert done.returncode == 1
    assert done.stderr.startswith("make up: no Docker engine answers. Fix: start it")
    assert not directory.exists()


def test_no_outgoing_connection_of_linux_can_hold_a_port_of_the_cluster() -> None:
    texts = [_UP.with_name("common").read_text(), (_UP.parents[1] / "compose.yaml").read_text()]
    ports = [set(map(int, re.findall(r"_PORT(?:_\d)?:-(\d+)", text))) for text in texts]
    assert ports[0] == ports[1]
    assert max(ports[0]) < 32_768  # net.ipv4.ip_local_port_range begins here


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_a_port_that_is_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(
        "#!/bin/sh\ncase \"$*\" in *' up '*) echo 'listen tcp4 127.0.0.1:31092: bind: address already in use'; exit 1;; esac\n"
    )
    docker.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = run(_UP, PATH=path, CLUSTER_DIRECTORY=str(tmp_path / "cluster"))
    assert done.returncode == 1
    *_, why, last = done.stderr.splitlines()
    assert why == "listen tcp4 127.0.0.1:31092: bind: address already in use"
    assert last.startswith("make up: Compose could not start kafka-1 kafka-2 kafka-3; why is above.")
    assert "Fix: make down; where a port is in use, name others (SCRAM_PORT_3=" in last


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
class TestCertificates:
    def test_what_is_made_stays_and_only_what_was_removed_is_made_again(self, tmp_path: Path) -> None:
        assert run(CERTIFICATES, str(tmp_path)).returncode == 0
        first = files(tmp_path)
        assert run(CERTIFICATES, str(tmp_path)).returncode == 0
        assert files(tmp_path) == first
        (tmp_path / "kafka-2" / "certificate.pem").unlink()
        assert run(CERTIFICATES, str(tmp_path)).returncode == 0
        again = files(tmp_path)
        changed = {name for name in first if again[name] != first[name]}
        assert changed == {f"kafka-2/{name}.pem" for name in ("certificate", "key", "keystore")}

    def test_a_new_authority_signs_everything_anew_and_passwords_stay(self, tmp_path: Path) -> None:
        assert run(CERTIFICATES, str(tmp_path)).returncode == 0
        first = files(tmp_path)
        (tmp_path / "authority" / "ca.key").unlink()
        assert run(CERTIFICATES, str(tmp_path)).returncode == 0
        again = files(tmp_path)
        kept = {name for name in first if again[name] == first[name]}
        assert {name for name in first if not name.endswith((".pem", ".key"))} == kept
        for certificate in tmp_path.glob("*/certificate.pem"):
            command = ["openssl", "verify", "-CAfile", str(tmp_path / "authority/ca.pem"), str(certificate)]
            assert (
                subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S).returncode == 0
            )
