"""The one place that pins which Kafka and which Spark connector are fetched.

Kafka. Its three roots below were resolved once; their whole closure is kept in ``jars.sha256``, by coordinates
and checksum, and fetched without any resolving. Maven takes the nearest version of a dependency and Ivy the
newest (log4j 2.25.4 in place of 2.24.3, measured), so letting each tool resolve would give two brokers.

To move to another version: change it here, let ``mvn dependency:copy-dependencies
-Dmdep.useRepositoryLayout=true`` resolve a pom with the three roots, write every jar's SHA-256 and coordinates
into ``jars.sha256``, and run the broker tests once with Maven and once without.

Spark's Kafka connector. It calls internals of Spark SQL, so its version is that of the installed PySpark, to the
last digit. For each version that eos is tested on there is a list, ``connector-VERSION.sha256``: the connector, and
what its pom asks for and PySpark lacks. In the lists of 4.1 and 4.2 one jar is older on purpose:
``spark-token-provider-kafka-0-10`` is released together with the connector, but a mirror may lack it (seen) and
hold 4.0.0. The connector sends the settings of its clients through it, and it changes them for Kafka
delegation tokens only, which eos does not use. Reading and writing were run with exactly these jars.

For any other PySpark, the list of the newest tested version before it serves, with the connector of the installed
version in it; that one jar has no checksum here.

To add a version: write the SHA-256 and coordinates of the connector and its dependencies into a list (without what
PySpark has in its ``jars`` already), add the version to SPARK_VERSIONS and to TESTED_VERSIONS in
``eos.spark.session.checks``, and run the Spark tests and ``tests/spark/test_spark_versions.py`` with it.
"""

from __future__ import annotations

import re

from eos.local.pins import Jar, JarSet

# Not 4.3.0 to 4.4.0: they leave the markers of transactions out (KAFKA-20734, docs/GUARANTEES.md). A sole broker that
# is killed right after it has answered a commit, which tests do, does it at nearly every restart.
KAFKA_VERSION = "4.2.1"
SCALA_VERSION = "2.13"
LOG4J_VERSION = "2.24.3"
SPARK_VERSIONS = ("4.0.0", "4.1.3", "4.2.0")  # tested, oldest first
MAVEN_DEPENDENCY_PLUGIN_VERSION = "3.8.1"
MIN_JAVA_VERSION = 17  # Kafka 4 brokers: KIP-1013. Spark 4 the same

ROOTS = (
    f"org.apache.kafka:kafka_{SCALA_VERSION}:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",  # TransactionsCommand, AclCommand, ProducerPerformance
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
)
_CONNECTOR = f"spark-sql-kafka-0-10_{SCALA_VERSION}"

KAFKA_JARS = JarSet(
    title=f"Apache Kafka {KAFKA_VERSION}",
    pins="jars.sha256",
    directory=f"kafka-{KAFKA_VERSION}",
    megabytes=54,
    otherwise=(
        f"unpack kafka_{SCALA_VERSION}-{KAFKA_VERSION}.tgz and set EOS_LOCAL__KAFKA_HOME to its directory"
    ),
)


def connector_jars(version: str) -> JarSet:
    """The jars that let a Spark of this version read Kafka."""
    connector = Jar("org.apache.spark", _CONNECTOR, version, sha256="")
    is_tested = version in SPARK_VERSIONS
    nearest = max(
        (tested for tested in SPARK_VERSIONS if _numbers(tested) <= _numbers(version)),
        key=_numbers,
        default=SPARK_VERSIONS[0],
    )
    return JarSet(
        title=f"Spark's Kafka connector {version}"
        + ("" if is_tested else " (not tested, no checksum known)"),
        pins=f"connector-{nearest}.sha256",
        directory=f"spark-kafka-{version}",
        megabytes=10,
        otherwise=f"let Spark fetch the connector itself: spark-submit --packages {connector.coordinates}",
        instead=None if is_tested else connector,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """4.1.0.dev2 -> (4, 1, 0): what comes behind the third number belongs to the version it names."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
