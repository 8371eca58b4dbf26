"""The rescue of a group that cannot keep up, as a drill."""

import pytest
from pyspark.sql import SparkSession

from hotfire.testing.blocking import BlockingCluster
from tests.unit.spark.rescue import Story, disordered, drill


def _check(story: Story, *, in_order: bool = True) -> None:
    numbers = [number for _, number in story.consumed]
    assert set(numbers) == set(range(story.sent)), "every message"
    assert len(numbers) == story.sent, "once: consumers were stopped in order, so that nothing was in flight"
    assert not in_order or disordered(story.consumed) == 0
    assert story.rates["rescue"] >= 8 * story.rates["before"]


@pytest.mark.promise(206, 207)
@pytest.mark.timeout(600)
def test_rescue_drains_ten_times_as_fast_and_goes_back(
    spark: SparkSession, hotfire_cluster: BlockingCluster
) -> None:
    """Two thousand behind: each is consumed once, in its key's order, and eight times as fast."""
    _check(drill(spark, hotfire_cluster, 2_000))


@pytest.mark.promise(206, 207)
@pytest.mark.timeout(180)
def test_rescue_by_rotation_drains_as_fast(spark: SparkSession, hotfire_cluster: BlockingCluster) -> None:
    """Dealt out in turn, for those who need no order: each is consumed once, and as much faster."""
    _check(drill(spark, hotfire_cluster, 1000, work_s=0.1, by="rotation"), in_order=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rescue_of_a_million(spark: SparkSession, hotfire_cluster: BlockingCluster) -> None:
    """The same of a million."""
    _check(drill(spark, hotfire_cluster, 1_000_000, work_s=0.02, tell=print))
