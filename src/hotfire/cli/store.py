"""hotfire store: look into a store directory that no broker has open, check it, make its queues anew."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from hotfire.cli import EXIT_FAILED, backup
from hotfire.cli.progress import Progress
from hotfire.figures import size_text
from hotfire.store.disk import Disk
from hotfire.store.kinds import refuse_snapshot
from hotfire.store.layout import Layout, Sizes, look, refuse_if_open
from hotfire.store.scan import NEVER

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def run(args: argparse.Namespace) -> int:
    if args.action in backup.ACTIONS:
        return backup.run(args)
    sizes = Sizes(args.segment_bytes, args.queue_file_bytes, args.index_slots, args.index_entries)
    disk = Disk(args.directory)
    if args.action in ("verify", "rebuild"):
        refuse_snapshot(disk)
    layout = look(disk, sizes)
    actions = {"info": _info, "dump": _dump, "verify": _verify, "rebuild": _rebuild}
    return actions[args.action](layout, args)


@contextmanager
def _showing(layout: Layout, what: str) -> Iterator[Progress]:
    """Progress over the log on stderr."""
    from hotfire.store.facts import log_end

    progress = Progress(what, layout.log_start, log_end(layout))
    try:
        yield progress
    finally:
        progress.clear()


# --- info ---


def _info(layout: Layout, args: argparse.Namespace) -> int:
    from hotfire.store.facts import facts

    with _showing(layout, "counting") as progress:
        found = facts(layout, count=args.count, progress=progress)
    if args.json:
        print(json.dumps(found))
        return 0
    log, checkpoint = found["log"], found["checkpoint"]
    print(f"store {found['root']}")
    state = "not closed cleanly: abort is there" if found["abort"] else "closed cleanly"
    print(f"  state       {f'open, by {layout.who}' if layout.holder is not None else state}")
    counted = f", {log['records']} records" if "records" in log else ""
    print(f"  log         {log['start']} to {log['end']}{counted}")
    print(
        f"  segments    {log['segments']} of {size_text(log['segmentBytes'])}, "
        f"{size_text(log['bytesOnDisk'])} on disk"
    )
    has_marks = "with our marks" if checkpoint.pop("is_ours") else "without marks of ours"
    marks = " ".join(f"{name}={value}" for name, value in checkpoint.items() if value not in (0, NEVER))
    print(f"  checkpoint  {has_marks}: {marks}")
    print(f"  tables      {' '.join(found['tables']) or 'none'}")
    each, on_disk = size_text(found["queueFileBytes"]), size_text(found["queueBytesOnDisk"])
    print(f"  queues      {len(found['queues'])}, files of {each}, {on_disk} on disk")
    for queue in found["queues"]:
        print(f"    {queue['topic']}/{queue['queueId']}  min {queue['min']}  max {queue['max']}")
    for queue in found["batchQueues"]:
        print(f"    {queue['topic']}/{queue['queueId']}  {queue['entries']} inner batches")
    shape = "" if layout.index_shape is None else ", {} slots and {} entries each".format(*layout.index_shape)
    on_disk = size_text(found["indexBytesOnDisk"])
    print(f"  index       {len(found['indexes'])} files{shape}, {on_disk} on disk")
    for header in found["indexes"]:
        begin, end = _moment(header["beginTimestamp"]), _moment(header["endTimestamp"])
        print(
            f"    {header['file']}  {begin} to {end}  offsets {header['beginPhyOffset']} to "
            f"{header['endPhyOffset']}  {header['hashSlotCount']} slots used  "
            f"next entry {header['indexCount']}"
        )
    for name in found["strays"]:
        print(f"  stray       {name}")
    return 0


def _moment(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp / 1000).astimezone().isoformat(timespec="milliseconds")


# --- dump ---


def _dump(layout: Layout, args: argparse.Namespace) -> int:
    from hotfire.store import dump
    from hotfire.store.facts import log_end
    from hotfire.store.logwalk import Fault

    if args.queues or args.index:
        rows = dump.queue_rows(layout, args.topic, args.queue) if args.queues else dump.index_rows(layout)
        for row in rows:
            _print_row(row)
        return 0
    stop = NEVER if args.stop is None else args.stop
    selection = dump.Selection(args.topic, args.queue, args.start, stop, args.bodies)
    code = 0
    with _showing(layout, "dumping") as progress:
        if sys.stdout.isatty():
            progress.be_quiet()  # the rows show how far it is
        for found in dump.records(layout, selection, progress):
            if not isinstance(found, Fault):
                _print_row(found)
                continue
            if found.resumed_at is None and (layout.was_unclean or found.offset >= log_end(layout)):
                break  # what a crash left behind the last record
            file, position = layout.place(found.offset)
            more = "nothing follows" if found.resumed_at is None else f"went on at {found.resumed_at}"
            _complain(f"{file} byte {position}: no sound record ({found.reason}); {more}")
            code = EXIT_FAILED
    return code


def _print_row(row: dict[str, Any]) -> None:
    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False)
    if not text.isascii():  # spelled as Java's writers do, so that texts can be compared
        text = _NOT_ASCII.sub(_escaped, text)
    sys.stdout.write(text + "\n")


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[i : i + 2]):04X}" for i in range(0, len(units), 2))


def _complain(text: str) -> None:
    print(f"hotfire store: {text}", file=sys.stderr)


# --- verify ---


def _verify(layout: Layout, args: argparse.Namespace) -> int:
    from hotfire.store.config import DELAY_LEVELS
    from hotfire.store.findings import Damage
    from hotfire.store.verify import verify

    refuse_if_open(layout, "verify")
    with _showing(layout, "verifying") as progress:

        def tell(damage: Damage) -> None:
            progress.clear()
            print(damage, flush=True)

        findings = verify(layout, tell, delay_levels=args.delay_levels or DELAY_LEVELS, progress=progress)
    for note in findings.notes:
        print(f"note: {note}")
    if findings.undispatched or findings.unindexed:
        print(
            f"note: {findings.undispatched} records not yet dispatched, {findings.unindexed} keys not yet "
            "indexed; the next start does both"
        )
    if findings.mended:
        print(f"note: {findings.mended} faults in queues or index which the next start makes anew")
    counted = f"{findings.records} records, {findings.entries} queue entries, {findings.keys} keys"
    print(f"{counted}: {f'{findings.damages} damaged places' if findings.damages else 'sound'}")
    return EXIT_FAILED if findings.damages else 0


# --- rebuild ---


def _rebuild(layout: Layout, args: argparse.Namespace) -> int:
    from hotfire.store.config import DELAY_LEVELS
    from hotfire.store.rebuild import rebuild

    refuse_if_open(layout, "rebuild")
    with _showing(layout, "rebuilding") as progress:
        built = rebuild(layout, delay_levels=args.delay_levels or DELAY_LEVELS, progress=progress)
    if built.dropped_ext:
        print(
            "note: filter bits in consumequeue_ext cannot be made from the log; consumers are served without"
        )
    print(f"made anew from {built.records} records: {built.entries} queue entries, {built.keys} keys")
    return 0
