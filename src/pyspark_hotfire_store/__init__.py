"""Spark looks for data sources in modules named pyspark_*, one in each: here `hotfire-store`."""

from hotfire.spark.storesource import StoreSource as DefaultSource

__all__ = ["DefaultSource"]
