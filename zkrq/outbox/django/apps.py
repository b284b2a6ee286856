"""The app, for ``INSTALLED_APPS``."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Bring the tables ``zkrq_outbox`` and ``zkrq_inbox``, and the command ``zkrq_forward``."""

    name = "zkrq.outbox.django"
    label = "zkrq_outbox"
    verbose_name = "zkrq outbox"
