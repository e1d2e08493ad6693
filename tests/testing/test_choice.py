"""Where brokers run is decided by what there is; the reason and the fix are always said."""

from __future__ import annotations

import importlib.util

import pytest

from eos.errors import ConfigError
from eos.local.versions import KAFKA_VERSION
from eos.testing import engine
from eos.testing.choice import IMAGES, Choice, Kind, choose
from tests.support.fake_engine import fake_engine

OFFICIAL, OURS = IMAGES
NOBODY = "unix:///nonexistent/engine.sock"


def chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str, *images: str, image: str | None = None, ping: int = 200
) -> Choice:
    with fake_engine(images, ping) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        return choose(wanted, image)


def test_the_images_are_of_the_pinned_version() -> None:
    assert {image.partition(":")[2] for image in IMAGES} == {KAFKA_VERSION}


@pytest.mark.parametrize(("there", "taken"), [((OURS,), OURS), ((OURS, OFFICIAL), OFFICIAL)])
def test_auto_takes_containers_if_an_engine_answers_and_has_an_image(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], taken: str
) -> None:
    choice = chosen(monkeypatch, "auto", *there)
    assert (choice.kind, choice.image) == (Kind.DOCKER, taken)
    assert (
        str(choice) == f"Kafka from containers of {taken}: auto, because an engine answers and has the image"
    )


def test_auto_takes_processes_if_no_engine_answers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    choice = choose("auto")
    assert (choice.kind, choice.image) == (Kind.PROCESS, None)
    assert "auto, because no container engine answers at /nonexistent/engine.sock (No such file" in str(
        choice
    )


def test_auto_takes_processes_if_the_engine_has_no_image_and_names_those_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = chosen(monkeypatch, "auto", "postgres:16")
    assert choice.kind is Kind.PROCESS
    assert f"has neither {OFFICIAL} nor {OURS}" in choice.why


def test_auto_takes_processes_if_the_engine_refuses_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "(Invalid response from docker daemon" in chosen(monkeypatch, "auto", OURS, ping=500).why


def test_processes_that_were_asked_for_need_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    assert choose("process") == Choice(Kind.PROCESS, None, "asked for")


@pytest.mark.parametrize("there", [(), ("mine:1",)])
def test_an_image_that_was_named_is_taken_also_if_it_has_to_be_pulled(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    choice = chosen(monkeypatch, "auto", *there, image="mine:1")
    assert choice.image == "mine:1"
    assert ("has the image" if there else "will pull the image") in choice.why


def test_docker_without_an_engine_is_an_error_that_names_the_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    with pytest.raises(
        ConfigError, match=r"no container engine answers.*Fix: start Docker.*--eos-kafka=process"
    ):
        choose("docker")


def test_docker_without_an_image_is_an_error_that_names_the_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"Fix: docker pull apache/kafka.*--eos-kafka-image.*--eos-kafka=process"
    ):
        chosen(monkeypatch, "docker")


def test_docker_without_testcontainers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "testcontainers" else find(name)
    )
    with pytest.raises(ConfigError, match=r"Fix: pip install 'eos-kafka\[testing\]'"):
        choose("docker")


def test_an_engine_on_another_machine_is_refused_because_its_loopback_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(ConfigError, match="ssh://somewhere is not on this machine"):
        choose("docker")


def test_an_unknown_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="Fix: one of auto, docker, process"):
        choose("podman")


def test_without_a_host_the_user_s_docker_context_says_where_the_engine_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Docker Desktop, Colima and Rancher set it up."""
    from docker.context import Context, ContextAPI

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: None)
    assert engine.socket_path() == "/var/run/docker.sock"
    context = Context("other", host="unix:///home/me/other.sock")
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: context)
    assert engine.socket_path() == "/home/me/other.sock"
