"""Who is in a group, asked of a coordinator that does not answer in time: a reason to ask again, and the process lives."""

from __future__ import annotations

import time

import pytest

from eos import retry
from eos.errors import RetriableError
from eos.kafka.admin import Admin
from eos.kafka.groups import Member
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.CONSUMER_GROUP_DESCRIBE])
def test_group_whose_coordinator_answers_late_is_asked_again(proxy: HoldProxy, api: ApiKey) -> None:
    """An answer that came after the question's timeout ended the process: librdkafka's issue 4605; see tests/canaries."""
    for _ in range(5):
        admin, group = Admin({"bootstrap.servers": proxy.bootstrap_servers}), unique("asked")
        holds = [proxy.hold(api) for _ in range(4)]  # several connections ask
        for timeout_s in (0.5, 0.2):
            with pytest.raises(RetriableError, match="no answer in time"):
                admin.groups.members(group, timeout_s)
        for hold in holds:
            hold.release()
        proxy.clear_rules()
        assert answered(admin, group) == []


def test_answer_to_an_earlier_question_counts_for_nothing(proxy: HoldProxy) -> None:
    """It is as old as the question: a member that has come since is not in it."""
    group = unique("asked")
    admin = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    assert answered(admin, group) == []
    hold = proxy.hold(ApiKey.CONSUMER_GROUP_DESCRIBE)
    asked = len(proxy.requests(ApiKey.CONSUMER_GROUP_DESCRIBE))
    for _ in range(3):
        with pytest.raises(RetriableError, match="no answer in time"):
            admin.groups.members(group, 0.2)
    assert len(proxy.requests(ApiKey.CONSUMER_GROUP_DESCRIBE)) == asked + 1, "one question at a time"
    hold.release()
    assert answered(admin, group) == []
    assert len(proxy.requests(ApiKey.CONSUMER_GROUP_DESCRIBE)) >= asked + 2


def test_question_that_stays_without_an_answer_is_asked_anew(proxy: HoldProxy) -> None:
    """The client that was asked is replaced after some seconds, and may never answer."""
    admin, group = Admin({"bootstrap.servers": proxy.bootstrap_servers}), unique("asked")
    proxy.hold(ApiKey.CONSUMER_GROUP_DESCRIBE)  # one request, for good
    assert answered(admin, group) == []


def test_admin_that_is_dropped_before_the_coordinator_answers_ends_no_process(proxy: HoldProxy) -> None:
    for number in range(5):
        client = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": f"dropped-{number}"}
        holds = [proxy.hold(ApiKey.FIND_COORDINATOR, client_id=client["client.id"]) for _ in range(4)]
        with pytest.raises(RetriableError, match="no answer in time"):
            Admin(client).groups.members(unique("asked"), 0.3)
        for hold in holds:
            hold.release()
        time.sleep(0.1)


def answered(admin: Admin, group: str) -> list[Member]:
    return retry.ask(lambda slice_s: admin.groups.members(group, slice_s), timeout_s=PATIENCE_S)
