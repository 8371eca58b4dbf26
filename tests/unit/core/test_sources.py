"""The number that tells a fresh compiled core from a stale one."""

from pathlib import Path

from hotfire.core.sources import source_hash


def test_any_change_of_the_sources_changes_the_number(tmp_path: Path) -> None:
    """A changed byte, a renamed file, a new header and a moved file boundary are each another number."""
    (tmp_path / "notes.txt").write_text("not a source")
    assert source_hash(tmp_path) is None
    (tmp_path / "a.c").write_text("one")
    seen = [source_hash(tmp_path)]
    (tmp_path / "a.c").write_text("two")
    seen.append(source_hash(tmp_path))
    (tmp_path / "a.c").rename(tmp_path / "b.c")
    seen.append(source_hash(tmp_path))
    (tmp_path / "b.h").write_text("")
    seen.append(source_hash(tmp_path))
    (tmp_path / "b.c").write_text("tw")
    (tmp_path / "b.h").write_text("o")
    seen.append(source_hash(tmp_path))
    assert len(set(seen)) == len(seen)
    (tmp_path / "notes.txt").write_text("still not a source")
    assert source_hash(tmp_path) == seen[-1]
