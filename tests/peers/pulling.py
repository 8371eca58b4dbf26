"""A pull as a plain consumer sends it: its own subscription in the request, no waiting, nothing committed."""

from hotfire.protocol.requests import PullMessage

SUBSCRIPTION = 4
"""The request's own expression counts, not what a heartbeat said."""


def pull(group: str, topic: str, queue_id: int, offset: int, *, bytes_max: int | None = None) -> PullMessage:
    return PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        max_msg_bytes=bytes_max,
    )
