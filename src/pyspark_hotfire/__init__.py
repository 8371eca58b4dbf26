"""Spark looks for data sources in modules named pyspark_*: this one is format `hotfire`."""

from hotfire.spark.source import HotfireSource as DefaultSource

__all__ = ["DefaultSource"]
