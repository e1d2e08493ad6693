"""The files that `eos init` writes. ``$name`` stands for the job's name."""

from __future__ import annotations

from string import Template

_README = Template("""# $name

A job of eos: it reads JSON from the topic `$name-in` and writes JSON to two topics, exactly once.

| topic | holds |
|---|---|
| `$name-in` | input: `{"id": "a", "amount": 700}` |
| `$name-out` | each valid input record |
| `$name-large` | those whose amount is 1,000 or more |
| `$name-dead` | what cannot be read, as it came; headers say where it came from and why |

You need `pip install 'eos-kafka[testing]'`. The Kafka on this machine needs Java 17, and Maven or PySpark to fetch its jars.

## From nothing to the proof

Run these five commands in this folder:

```console
$$ eos local start
$$ eos local topics $name:job
$$ eos local produce $name-in '{"id": "a", "amount": 700}' '{"id": "b", "amount": 4000}' 'not JSON'
$$ eos run $name:job --config $name.toml --local --start earliest --until-caught-up
$$ eos verify $name:job --config $name.toml --local
```

The last one reads the topics from outside and compares them with what the input asks for. It ends with `exactly once  yes`.

## Look, test, stop

```console
$$ eos show $name-large --local
$$ eos show $name-dead --local
$$ pytest test_$name.py
$$ eos local stop
```

The test starts a Kafka of its own. `eos show` prints each record of a topic, and whether it is committed.

## The files

- `$name.py`: the job. Change `parse` and `transform` first.
- `$name.toml`: its settings. `eos config describe` explains all there are. The addresses of the brokers are not in the file, because they
  depend on the environment: on your cluster set `EOS_KAFKA__BOOTSTRAP_SERVERS=host:9092`, and leave `--local` out.
- `test_$name.py`: a test of the function alone, and one on a real Kafka.

`--start` is for the first run alone. Later runs go on from the committed offsets. Without `--until-caught-up` the job runs until Ctrl-C or
SIGTERM. `eos prove $name:job --config $name.toml` kills and disturbs the job on a cluster of its own, and judges the result.
""")
_JOB = Template('''"""$name: reads JSON and writes JSON to two topics. What cannot be read goes to a dead-letter topic."""

import json
from collections.abc import Iterator
from itertools import count

from eos import InputRecord, Job, OutputRecord

LARGE_FROM = 1_000


def parse(value: bytes | None) -> tuple[str, int]:
    """Raise for what cannot be read. The poison policy, in $name.toml, says what happens then."""
    given = json.loads(value or b"")
    if not isinstance(given, dict) or not isinstance(given.get("amount"), int) or "id" not in given:
        raise ValueError('needs {"id": …, "amount": WHOLE NUMBER}')
    return str(given["id"]), given["amount"]


def to_json(**fields: object) -> bytes:
    """The same bytes for the same fields, at every try."""
    return json.dumps(fields, sort_keys=True).encode()


def transform(record: InputRecord) -> list[OutputRecord]:
    """A pure function of the record: after a crash it is applied again, and `eos verify` applies it too."""
    name, amount = parse(record.value)
    outputs = [OutputRecord("$name-out", to_json(id=name, amount=amount), name.encode())]
    if amount >= LARGE_FROM:
        outputs.append(OutputRecord("$name-large", to_json(id=name, amount=amount), name.encode()))
    return outputs


job = Job(
    name="$name",
    inputs=["$name-in"],
    outputs=["$name-out", "$name-large"],
    dead_letters="$name-dead",
    transform=transform,
)


def sample_input(seed: int) -> Iterator[bytes]:
    """What `eos prove` feeds the job with."""
    for number in count():
        yield to_json(id=f"{seed}-{number}", amount=number % 2_000)
''')
_SETTINGS = Template("""# Settings of $name. All there are: eos config describe
# The brokers' addresses are not here: EOS_KAFKA__BOOTSTRAP_SERVERS=host:9092, or --local for the Kafka of `eos local start`.
group = "$name" # part of every transactional.id: never rename it

[transaction]
interval_ms = 100 # readers of the output wait for so long; longer is cheaper

[poison]
policy = "dead-letter" # or "stop", the default: exit code 4, and the error names the record
""")
_TEST = Template('''"""The function alone, and the job on a real Kafka, which pytest starts."""

import pytest
from eos.testing import KafkaCluster, assert_exactly_once

from $name import job, parse, to_json


def test_what_has_no_amount_is_refused() -> None:
    with pytest.raises(ValueError, match="amount"):
        parse(b'{"id": "a"}')


def test_each_record_is_written_exactly_once(eos_cluster: KafkaCluster) -> None:
    eos_cluster.create_topics(job, partitions=3)
    given = [to_json(id=f"n{number}", amount=100 * number) for number in range(20)]
    eos_cluster.produce("$name-in", [*given, b"not JSON"])
    settings = eos_cluster.settings(job, {"poison.policy": "dead-letter"})
    eos_cluster.run(job, settings)
    assert_exactly_once(job, settings, records=21)
    assert len(eos_cluster.read_committed("$name-out")) == 20
    assert len(eos_cluster.read_committed("$name-large")) == 10
    assert [record.value for record in eos_cluster.read_committed("$name-dead")] == [b"not JSON"]
''')


def files_of(name: str) -> dict[str, str]:
    """File name -> text."""
    templates = {
        "README.md": _README,
        f"{name}.py": _JOB,
        f"{name}.toml": _SETTINGS,
        f"test_{name}.py": _TEST,
    }
    return {file: template.substitute(name=name) for file, template in templates.items()}
