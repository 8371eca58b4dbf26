"""Figures as people read them."""

from __future__ import annotations


def size_text(size: int) -> str:
    """
    >>> size_text(1536), size_text(262144), size_text(3 << 30)
    ('1.5 KiB', '256 KiB', '3 GiB')
    """
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.95 or unit == "TiB":  # 1024 of a unit is one of the next
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(5.2), duration_text(400), duration_text(8000)
    ('5 s', '6 min 40 s', '2 h 13 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
