"""Nothing here needs a server; examples may take their time on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
