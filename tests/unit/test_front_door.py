"""What `import hotfire` offers."""

import hotfire


def test_all_is_what_can_be_had_and_nothing_else() -> None:
    """__all__ is sorted, every name in it resolves, and dir() shows just these."""
    assert sorted(hotfire.__all__) == hotfire.__all__
    assert dir(hotfire) == hotfire.__all__
    for name in hotfire.__all__:
        assert getattr(hotfire, name) is not None
    assert not hasattr(hotfire, "nothing")
