"""What users import in their test suites: a Kafka cluster that can have accidents, and the proof of exactly-once.

The pytest plugin (``eos.testing.plugin``) is loaded by itself where the extra ``eos-kafka[testing]`` is installed.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from eos.testing.assertion import assert_exactly_once
    from eos.testing.cluster import KafkaCluster
    from eos.testing.running import RunningJob

__all__ = ["KafkaCluster", "RunningJob", "assert_exactly_once"]

# Imported when first asked for, as in the package above: the plugin passes through here in every run of pytest.
_HOMES = {
    "eos.testing.assertion": ("assert_exactly_once",),
    "eos.testing.cluster": ("KafkaCluster",),
    "eos.testing.running": ("RunningJob",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Hidden from type checkers, which would take any name for one that is there.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if (home := _HOME_OF.get(name)) is None:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value: object = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
