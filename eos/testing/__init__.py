"""What users import in their test suites: a Kafka cluster whose brokers can fail, and the proof of exactly-once.

pytest loads the plugin (``eos_pytest``) by itself where the extra ``eos-kafka[testing]`` is installed.
"""

from eos.testing.assertion import GuaranteeViolated, assert_exactly_once
from eos.testing.cluster import KafkaCluster
from eos.testing.running import RunningJob

__all__ = ["GuaranteeViolated", "KafkaCluster", "RunningJob", "assert_exactly_once"]
