"""Property tests here are about what comes out, not when: a busy machine must not fail them."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
