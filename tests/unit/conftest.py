"""Nothing here needs a server; examples may take their time on a busy machine, so there are fewer than usual."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None, max_examples=40)
settings.load_profile("unit")
