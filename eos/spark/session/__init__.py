"""The one door to PySpark's private attributes.

`session` begins, interrupts and stops one, `checks` refuses one that cannot keep its promise, `java_options` are those of Spark's
Kafka client. `jvm` has plans and RDDs, `checkpoint` the files of a query, `thrown` the exceptions of Java.
"""
