"""Request frames are read as the protocol guide lays them out, in their old and their flexible form."""

from __future__ import annotations

import struct

import pytest

from eos.testing.proxy.answers import refusal
from eos.testing.proxy.frames import ApiKey, Frame

# Client id "rdkafka", transactional id "i", producer id 5, epoch 3, commit.
END_TXN_V1 = bytes.fromhex("001a 0001 00000007 0007 72646b61666b61 0001 69 0000000000000005 0003 01")


def short(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def compact(text: str | None) -> bytes:
    return b"\0" if text is None else bytes([len(text) + 1]) + text.encode()


def header(api_key: ApiKey, version: int, *, tags: bytes = b"") -> bytes:
    return struct.pack(">hhi", api_key, version, 42) + short("client") + tags


def test_old_end_txn() -> None:
    frame = Frame.parse(END_TXN_V1)
    assert (frame.api_key, frame.api_version, frame.correlation_id) == (ApiKey.END_TXN, 1, 7)
    assert frame.client_id == "rdkafka"
    assert frame.transactional_id == "i"
    end = frame.end_txn()
    assert end is not None
    assert (end.producer_id, end.producer_epoch, end.committed) == (5, 3, True)


def test_flexible_end_txn_with_a_tagged_field_in_the_header() -> None:
    payload = header(ApiKey.END_TXN, 3, tags=b"\1\0\2ab") + compact("id") + struct.pack(">qh?", 1, 2, False)
    end = Frame.parse(payload + b"\0").end_txn()
    assert end is not None
    assert (end.transactional_id, end.producer_id, end.committed) == ("id", 1, False)


def offsets_in(frame: Frame) -> tuple[str, str, int, int, dict[tuple[str, int], int]]:
    body = frame.body()
    offsets = {
        (topic.name, one.partition_index): one.committed_offset
        for topic in body.topics
        for one in topic.partitions
    }
    return body.transactional_id, body.group_id, body.producer_id, body.producer_epoch, offsets


def test_flexible_offsets() -> None:
    member = struct.pack(">i", 4) + compact("member") + NO_RACK
    partition = struct.pack(">iqi", 7, 10, -1) + compact("token") + b"\0"
    topic = compact("t") + b"\2" + partition + b"\0"
    body = compact("id") + compact("g") + struct.pack(">qh", 1, 2) + member + b"\2" + topic + b"\0"
    frame = Frame.parse(header(ApiKey.TXN_OFFSET_COMMIT, 3, tags=b"\0") + body)
    assert offsets_in(frame) == ("id", "g", 1, 2, {("t", 7): 10})


def test_old_offsets() -> None:
    topic = short("t") + struct.pack(">i", 1) + struct.pack(">iqi", 7, 10, -1) + short(None)
    body = short("id") + short("g") + struct.pack(">qh", 1, 2) + struct.pack(">i", 1) + topic
    frame = Frame.parse(header(ApiKey.TXN_OFFSET_COMMIT, 2) + body)
    assert offsets_in(frame) == ("id", "g", 1, 2, {("t", 7): 10})


@pytest.mark.parametrize(("version", "text", "tags"), [(8, short, b""), (10, compact, b"\0")])
def test_produce_of_a_plain_producer_has_no_transactional_id(version: int, text: object, tags: bytes) -> None:
    assert callable(text)
    assert Frame.parse(header(ApiKey.PRODUCE, version, tags=tags) + text(None)).transactional_id is None
    assert Frame.parse(header(ApiKey.PRODUCE, version, tags=tags) + text("id")).transactional_id == "id"


def test_other_requests_are_frames_without_a_known_body() -> None:
    frame = Frame.parse(header(ApiKey.HEARTBEAT, 3))
    assert (frame.transactional_id, frame.end_txn()) == (None, None)


def test_request_without_a_client_id() -> None:
    assert Frame.parse(struct.pack(">hhi", ApiKey.FETCH, 4, 1) + short(None)).client_id is None


@pytest.mark.parametrize(
    ("api_key", "version", "tags"),
    [
        (ApiKey.END_TXN, 1, b""),
        (ApiKey.INIT_PRODUCER_ID, 4, b"\0"),
        (ApiKey.HEARTBEAT, 3, b""),
        (ApiKey.HEARTBEAT, 4, b"\0"),
    ],
)
def test_error_of_an_answer(api_key: ApiKey, version: int, tags: bytes) -> None:
    frame = Frame.parse(header(api_key, version, tags=tags))
    producer = struct.pack(">qh", 9, 4) if api_key is ApiKey.INIT_PRODUCER_ID else b""
    answer = struct.pack(">i", 42) + tags + struct.pack(">ih", 0, 47) + producer + tags
    assert frame.error_in(answer) == 47
    assert frame.error_in(frame.with_error(answer, 22)) == 22


def test_answer_of_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="not known here"):
        Frame.parse(header(ApiKey.SYNC_GROUP, 3)).error_in(b"")


@pytest.mark.parametrize("version", [11, 12, 16])
def test_fetch_answer_gets_an_error_for_one_partition_and_stays_as_it_is_otherwise(version: int) -> None:
    """As the protocol guide lays it out: names to version 12, ids from 13 on; flexible from 12 on."""
    flexible = version >= 12
    tags = b"\0" if flexible else b""

    def array(*items: bytes) -> bytes:
        return (bytes([len(items) + 1]) if flexible else struct.pack(">i", len(items))) + b"".join(items)

    def data(content: bytes) -> bytes:
        return (bytes([len(content) + 1]) if flexible else struct.pack(">i", len(content))) + content

    def partition(number: int, error: int, mark: int) -> bytes:
        aborted = array(struct.pack(">qq", 7, 1) + tags)
        fields = struct.pack(">ihqqq", number, error, mark, mark, mark)
        return fields + aborted + struct.pack(">i", -1) + data(b"records") + tags

    def answer(error: int, mark: int) -> bytes:
        name = b"i" * 16 if version >= 13 else compact("in") if flexible else short("in")
        topic = name + array(partition(0, 0, 5), partition(1, error, mark)) + tags
        return struct.pack(">i", 42) + tags + struct.pack(">ihi", 0, 0, 3) + array(topic) + tags

    frame = Frame.parse(header(ApiKey.FETCH, version, tags=tags))
    assert frame.with_fetch_error(answer(0, 5), 1, 56) == answer(56, -1)


NO_RACK = b"\0"


def test_offset_fetch_answer_loses_the_offset_of_one_partition_or_all_for_an_error_of_the_group() -> None:
    def answer(*, offset: int = 10, epoch: int = 5, error: int = 0) -> bytes:
        def one(number: int, offset: int, epoch: int) -> bytes:
            return struct.pack(">iqi", number, offset, epoch) + compact("eos1") + struct.pack(">h", 0) + b"\0"

        partitions = b"\3" + one(0, offset, epoch) + one(1, 20, 5)
        topics = b"\2" + compact("in") + partitions + b"\0"
        groups = b"\2" + compact("group") + topics + struct.pack(">h", error) + b"\0"
        return struct.pack(">i", 42) + b"\0" + struct.pack(">i", 0) + groups + b"\0"

    frame = Frame.parse(header(ApiKey.OFFSET_FETCH, 9, tags=b"\0"))
    assert frame.with_no_offset(answer(), 0) == answer(offset=-1, epoch=-1)
    assert frame.with_error(answer(), 14) == answer(error=14)


def test_metadata_answer_loses_partitions_or_leaders_of_one_topic_and_stays_as_it_is_otherwise() -> None:
    def answer(*, listed: int, error: int = 0, leader: int = 1, brokers: int = 1) -> bytes:
        def topic(name: str, count: int, error: int = 0, leader: int = 1) -> bytes:
            one = b"\2" + struct.pack(">i", 1)
            partitions = b"".join(
                struct.pack(">hiii", error, n, leader, 7) + one + one + b"\1\0" for n in range(count)
            )
            body = struct.pack(">16s?", b"id", False) + bytes([count + 1]) + partitions
            return struct.pack(">h", 0) + compact(name) + body + struct.pack(">i", 0) + b"\0"

        broker = struct.pack(">i", 1) + compact("host") + struct.pack(">i", 9092) + NO_RACK + b"\0"
        topics = b"\3" + topic("other", 2) + topic("in", listed, error, leader)
        cluster = compact("cluster") + struct.pack(">i", 1)
        listing = bytes([brokers + 1]) + brokers * broker
        body = struct.pack(">i", 0) + listing + cluster + topics + struct.pack(">h", 0) + b"\0"
        return struct.pack(">i", 42) + b"\0" + body

    frame = Frame.parse(header(ApiKey.METADATA, 13, tags=b"\0"))
    assert frame.with_fewer_partitions(answer(listed=2), "in") == answer(listed=1)
    assert frame.with_fewer_partitions(answer(listed=2), "unknown") == answer(listed=2)
    assert frame.with_no_brokers(answer(listed=2)) == answer(listed=2, brokers=0)
    assert frame.with_no_leader(answer(listed=2), "in") == answer(listed=2, error=5, leader=-1)


ABSENT = b"\0"  # a string that is null, and no items


def produce_answer(error: int, base: int) -> bytes:
    """Of version 10, as the protocol guide lays it out: the second partition names a record and a message."""
    records = b"\2" + struct.pack(">i", 3) + compact("bad") + b"\0"
    quiet = struct.pack(">ihqqq", 0, error, base, -1, 0) + b"\1" + ABSENT + b"\0"
    loud = struct.pack(">ihqqq", 1, error, base, -1, 0) + records + compact("why") + b"\0"
    topic = compact("out") + b"\3" + quiet + loud + b"\0"
    return struct.pack(">i", 42) + b"\0" + b"\2" + topic + struct.pack(">i", 7) + b"\0"


def partitions_answer(version: int, error: int) -> bytes:
    """Of AddPartitionsToTxn up to version 3 and of TxnOffsetCommit: by topic and partition."""
    flexible = version >= 3
    tags = b"\0" if flexible else b""
    two = b"".join(struct.pack(">ih", n, error) + tags for n in (0, 1))
    one_topic = (
        b"\2" + compact("t") + b"\3" if flexible else struct.pack(">i", 1) + short("t") + struct.pack(">i", 2)
    )
    topics = one_topic + two + tags
    return struct.pack(">i", 42) + tags + struct.pack(">i", 0) + topics + tags


def group_answer(error: int) -> bytes:
    one = struct.pack(">iqi", 0, 10, 5) + compact("eos1") + struct.pack(">h", 0) + b"\0"
    topics = b"\2" + compact("in") + b"\2" + one + b"\0"
    groups = b"\2" + compact("group") + topics + struct.pack(">h", error) + b"\0"
    return struct.pack(">i", 42) + b"\0" + struct.pack(">i", 0) + groups + b"\0"


def short_answer(version: int, error: int, *, producer: bool = False) -> bytes:
    tags = b"\0" if version >= 3 else b""
    of_the_producer = struct.pack(">qh", 9, 4) if producer else b""
    return struct.pack(">i", 42) + tags + struct.pack(">ih", 0, error) + of_the_producer + tags


def answer_by_ids(error: int, base: int) -> bytes:
    """Of Produce version 13, which names topics by their ids."""
    one = struct.pack(">ihqqq", 0, error, base, -1, 0) + b"\1" + ABSENT + b"\0"
    return (
        struct.pack(">i", 42) + b"\0" + b"\2" + b"i" * 16 + b"\2" + one + b"\0" + struct.pack(">i", 7) + b"\0"
    )


@pytest.mark.parametrize(
    ("api_key", "version", "well", "failed"),
    [
        (ApiKey.PRODUCE, 10, produce_answer(0, 8), produce_answer(47, -1)),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 0, partitions_answer(0, 0), partitions_answer(0, 47)),
        (ApiKey.TXN_OFFSET_COMMIT, 3, partitions_answer(3, 0), partitions_answer(3, 47)),
        (ApiKey.OFFSET_FETCH, 9, group_answer(0), group_answer(47)),
        (ApiKey.INIT_PRODUCER_ID, 4, short_answer(4, 0, producer=True), short_answer(4, 47, producer=True)),
        (ApiKey.ADD_OFFSETS_TO_TXN, 0, short_answer(0, 0), short_answer(0, 47)),
        (ApiKey.END_TXN, 1, short_answer(1, 0), short_answer(1, 47)),
        # As Java's clients speak:
        (ApiKey.END_TXN, 5, short_answer(5, 0, producer=True), short_answer(5, 47, producer=True)),
        (ApiKey.TXN_OFFSET_COMMIT, 5, partitions_answer(5, 0), partitions_answer(5, 47)),
        (ApiKey.PRODUCE, 13, answer_by_ids(0, 8), answer_by_ids(47, -1)),
    ],
)
def test_answer_becomes_an_error_and_stays_as_it_is_otherwise(
    api_key: ApiKey, version: int, well: bytes, failed: bytes
) -> None:
    flexible = version >= {ApiKey.PRODUCE: 9, ApiKey.OFFSET_FETCH: 6, ApiKey.INIT_PRODUCER_ID: 2}.get(
        api_key, 3
    )
    frame = Frame.parse(header(api_key, version, tags=b"\0" if flexible else b""))
    assert frame.with_error(well, 47) == failed


LONG = "t" * 200  # its length takes two bytes in the flexible form


def request_for_two_partitions(api_key: ApiKey, version: int) -> Frame:
    """Of topic "t", or of a long one."""
    flexible = version >= (9 if api_key is ApiKey.PRODUCE else 3)
    text, tags = (compact, b"\0") if flexible else (short, b"")

    def array(*items: bytes) -> bytes:
        return (bytes([len(items) + 1]) if flexible else struct.pack(">i", len(items))) + b"".join(items)

    name = b"\xc9\x01" + LONG.encode() if flexible else short("t")
    match api_key:
        case ApiKey.PRODUCE:
            records = b"\3ab" if flexible else struct.pack(">i", 2) + b"ab"
            head = text("id") + struct.pack(">hi", -1, 500)
            parts = [struct.pack(">i", n) + records + tags for n in (0, 1)]
        case ApiKey.TXN_OFFSET_COMMIT:
            member = struct.pack(">i", 4) + text("member") + NO_RACK if flexible else b""
            head = text("id") + text("g") + struct.pack(">qh", 5, 3) + member
            parts = [struct.pack(">iqi", n, 10, -1) + text("token") + tags for n in (0, 1)]
        case _:
            head = text("id") + struct.pack(">qh", 5, 3)
            parts = [struct.pack(">i", n) for n in (0, 1)]
    topic = name + array(*parts) + tags
    return Frame.parse(header(api_key, version, tags=tags) + head + array(topic) + tags)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (ApiKey.PRODUCE, 7),
        (ApiKey.PRODUCE, 10),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 0),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3),
        (ApiKey.TXN_OFFSET_COMMIT, 2),
        (ApiKey.TXN_OFFSET_COMMIT, 3),
    ],
)
def test_refusal_names_each_partition_of_the_request(api_key: ApiKey, version: int) -> None:
    frame = request_for_two_partitions(api_key, version)
    more = b""
    if api_key is ApiKey.PRODUCE:
        more = struct.pack(">qqq", -1, -1, -1) + (b"\1\0" if version >= 9 else b"")
    tags, throttle = (b"\0" if frame.flexible else b""), struct.pack(">i", 0)
    two = b"".join(struct.pack(">ih", n, 47) + more + tags for n in (0, 1))
    if frame.flexible:
        topics = b"\2\xc9\x01" + LONG.encode() + b"\3" + two + tags
    else:
        topics = struct.pack(">i", 1) + short("t") + struct.pack(">i", 2) + two
    body = topics + throttle if api_key is ApiKey.PRODUCE else throttle + topics
    assert refusal(frame, 47) == struct.pack(">i", 42) + tags + body + tags


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(ApiKey.INIT_PRODUCER_ID, 4), (ApiKey.ADD_OFFSETS_TO_TXN, 0), (ApiKey.END_TXN, 1), (ApiKey.END_TXN, 3)],
)
def test_refusal_without_partitions_is_read_as_the_error(api_key: ApiKey, version: int) -> None:
    flexible = version >= (2 if api_key is ApiKey.INIT_PRODUCER_ID else 3)
    frame = Frame.parse(header(api_key, version, tags=b"\0" if flexible else b""))
    answer = refusal(frame, 51)
    assert frame.error_in(answer) == 51
    well = 4 + 6 + (10 if api_key is ApiKey.INIT_PRODUCER_ID else 0) + 2 * flexible
    assert len(answer) == well


def test_refusals_of_the_versions_that_java_speaks_are_read_as_the_error() -> None:
    end = Frame.parse(header(ApiKey.END_TXN, 5, tags=b"\0"))
    no_producer = struct.pack(">qh", -1, -1)
    assert refusal(end, 51) == struct.pack(">i", 42) + b"\0" + struct.pack(">ih", 0, 51) + no_producer + b"\0"
    records = struct.pack(">i", 0) + b"\3ab" + b"\0"
    body = compact("id") + struct.pack(">hi", -1, 500) + b"\2" + b"i" * 16 + b"\2" + records + b"\0\0"
    produce = Frame.parse(header(ApiKey.PRODUCE, 13, tags=b"\0") + body)
    one = struct.pack(">ihqqq", 0, 47, -1, -1, -1) + b"\1\0\0"
    topics = b"\2" + b"i" * 16 + b"\2" + one + b"\0"
    assert refusal(produce, 47) == struct.pack(">i", 42) + b"\0" + topics + struct.pack(">i", 0) + b"\0"


def test_refusal_of_another_request_is_not_known() -> None:
    with pytest.raises(ValueError, match="not known here"):
        refusal(Frame.parse(header(ApiKey.HEARTBEAT, 3)), 47)
