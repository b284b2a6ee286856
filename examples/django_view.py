"""A Django view that pushes when its transaction is committed, by ``zkrq.sync``: calls without ``await``.

The cluster and its queue are made when the module is imported, which connects to nothing; the first push of a process
does. If the transaction fails, nothing is pushed; if the servers cannot be reached, the order still exists,
and the view's error says that its e-mail is not.

Run it with ``python examples/django_view.py``. For servers of your own replace ``zkrq.sync.embedded()`` by
``zkrq.sync.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop")``, and let a
``zkrq.Worker`` in a process of its own (``zkrq worker``) do the work.
"""

from __future__ import annotations

from collections import Counter

import django
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

import zkrq.sync

ORDERS = 10

cluster = zkrq.sync.embedded()
orders = cluster.queue("orders")


def order(request: HttpRequest) -> HttpResponse:
    """Answer ``POST /order``."""
    number = request.POST["number"]
    try:
        with transaction.atomic():
            transaction.on_commit(lambda: orders.push({"number": number}, key=f"order:{number}"))
            if int(number) >= ORDERS:
                raise ValueError("no such order")
    except ValueError as error:
        return HttpResponse(str(error), status=404)
    return HttpResponse("thank you", status=202)


urlpatterns = [path("order", order)]


def main() -> None:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        LOGGING={"version": 1, "loggers": {"django": {"level": "CRITICAL"}}},  # it would print what is refused
        ROOT_URLCONF=__name__,
    )
    django.setup()
    client = Client()
    with cluster:
        answers = Counter(client.post("/order", {"number": str(number)}).status_code for number in range(ORDERS + 1))
        for status, count in answers.items():
            print(f"{count} orders were answered: {status}")
        numbers = {claim.item["number"] for claim in orders.pop(wait=False) if claim.ack() is None}
        print(f"{len(numbers)} orders in the queue, {sum(orders.size())} left")


if __name__ == "__main__":
    main()
