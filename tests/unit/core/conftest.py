"""Property tests here are about what comes out, not when: a busy machine must not fail them."""

import os

from hypothesis import settings

# Under the sanitizers each example takes ten times as long, and the same ones have run without them.
EXAMPLES = 40 if "HOTFIRE_EXPECT_UNDER" in os.environ else 100

settings.register_profile("no-deadline", deadline=None, max_examples=EXAMPLES)
settings.load_profile("no-deadline")
