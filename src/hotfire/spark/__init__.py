"""The log as a table: Spark's sources and sink, and the pipelines made of them.

Stands on the client, on the store's files where they are read without a broker, and on pyspark; nothing here
is imported by any other room. `pyspark_hotfire` and `pyspark_hotfire_store` are how Spark finds the formats.
"""
