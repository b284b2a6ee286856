"""Make the scheme ``zkrq://`` known to kombu, in every program that uses Celery where zkrq is installed.

kombu has no entry point for transports, but loads those of ``kombu.serializers`` with its serializers, which Celery
imports.  So there is one, which names this module.  It imports nothing of zkrq, and the serializer is plain JSON under
a name of its own.  A program that uses kombu alone imports ``zkrq.kombu``.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.json import dumps, loads

TRANSPORT_ALIASES.setdefault("zkrq", "zkrq.kombu:Transport")

SERIALIZER = (dumps, loads, "application/x-zkrq-json", "utf-8")
"""Arguments of ``kombu.serialization.register`` beside the name."""
