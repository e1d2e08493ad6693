"""The one place that pins which Kafka and which Spark connector are fetched.

Kafka. Its three roots below were resolved once; their whole closure is kept in ``jars.sha256``, by coordinates
and checksum, and fetched without any resolving. Maven takes the nearest version of a dependency and Ivy the
newest (log4j 2.25.4 in place of 2.24.3, measured), so letting each tool resolve would give two brokers.

To move to another version: change it here, let ``mvn dependency:copy-dependencies
-DuseRepositoryLayout=true`` resolve a pom with the three roots, write every jar's SHA-256 and coordinates
into ``jars.sha256``, and run the broker tests once with Maven and once without.

Spark's Kafka connector. It calls internals of Spark SQL, so its version is PySpark's, to the last digit; the
other jars of ``connector.sha256`` are what its pom asks for and PySpark lacks. One of them is older on purpose:
``spark-token-provider-kafka-0-10`` is released together with the connector, but a mirror may lack 4.2.0 (seen)
and hold 4.0.0. The connector sends the settings of its clients through it, and it changes them for Kafka
delegation tokens only, which eos does not use. Reading and writing were run with exactly these four jars.

To move to another version: change ``pyspark`` in pyproject.toml and the version here together, write the
SHA-256 and coordinates of the connector and its dependencies into ``connector.sha256`` (without what PySpark
has in its ``jars`` already), and run the Spark tests.
"""

from __future__ import annotations

from eos.local.pins import JarSet

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
LOG4J_VERSION = "2.24.3"
SPARK_VERSION = "4.2.0"
MAVEN_DEPENDENCY_PLUGIN_VERSION = "3.8.1"
MIN_JAVA_VERSION = 17  # Kafka 4 brokers: KIP-1013. Spark 4 the same

ROOTS = (
    f"org.apache.kafka:kafka_{SCALA_VERSION}:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",  # DumpLogSegments, TransactionsCommand, ProducerPerformance
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
)
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{SPARK_VERSION}"

KAFKA_JARS = JarSet(
    title=f"Apache Kafka {KAFKA_VERSION}",
    pins="jars.sha256",
    directory=f"kafka-{KAFKA_VERSION}",
    megabytes=54,
    otherwise=(
        f"unpack kafka_{SCALA_VERSION}-{KAFKA_VERSION}.tgz and set EOS_LOCAL__KAFKA_HOME to its directory"
    ),
)
CONNECTOR_JARS = JarSet(
    title=f"Spark's Kafka connector {SPARK_VERSION}",
    pins="connector.sha256",
    directory=f"spark-kafka-{SPARK_VERSION}",
    megabytes=10,
    otherwise=f"let Spark fetch the connector itself: spark-submit --packages {CONNECTOR}",
)
