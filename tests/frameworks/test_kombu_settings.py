"""The transport for kombu as it is named and set: what it refuses, options, settings of Celery and Django."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange

import zkrq
from zkrq import sync
from zkrq.kombu import BROKER_URL
from zkrq.kombu.options import LEFT_OVER

ROOT = Path(__file__).parents[2]


def test_what_it_refuses(connection: Connection, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(zkrq.ConfigError, match="the queue's name"):
        connection.SimpleQueue("a@b").put(1)
    with pytest.raises(zkrq.ConfigError, match="visibility_timeout"):
        Connection(BROKER_URL, transport_options={**options, "visibility_timeout": 1}).connect()
    connection.Producer().publish(1, exchange=Exchange("nowhere", type="topic"), routing_key="task.sent")
    assert [record.levelno for record in caplog.records if "was dropped" in record.message] == [logging.WARNING]


@pytest.mark.parametrize(
    ("url", "others", "text"),
    [
        ("zkrq://10.0.0.1/0", {}, "the broker's URL must be 'zkrq://'"),
        ("zkrq://:secret@", {}, "the broker's URL must be 'zkrq://'"),
        ("zkrq:///shop", {}, "the broker's URL must be 'zkrq://'"),
        (BROKER_URL, {"ssl": True}, "redis_tls"),
        (BROKER_URL, {"userid": "ann"}, "broker_transport_options"),
    ],
)
def test_what_is_given_in_vain_is_refused(options: dict[str, Any], url: str, others: dict[str, Any], text: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=text):
        Connection(url, transport_options=options, **others).connect()
    assert Connection(url).as_uri(include_password=True) == BROKER_URL, "no host, no password"


def test_an_option_of_another_broker_is_refused_by_name(options: dict[str, Any]) -> None:
    for left_over, text in (
        ({"visibility_timeout": 3600}, "no visibility_timeout: remove it\n  visibility_timeout: a task is held"),
        ({"max_conections": 9, "sep": ":"}, "no max_conections, sep: remove them\n  sep: a priority"),
        ({"drop_expired": 1}, "drop_expired is 1"),
        ({"groups": zkrq.Groups(ordered=True)}, "no groups: remove it\n  groups: it is a setting of the queue"),
        ({"max_size": "many"}, "broker_transport_options: max_size must be an int"),
    ):
        with pytest.raises(zkrq.ConfigError, match=text):
            Connection(BROKER_URL, transport_options={**options, **left_over}).connect()


def test_each_option_of_redis_that_may_be_left_over_is_explained() -> None:
    """kombu's own transport for Redis says which there are."""
    redis: Any = import_module("kombu.transport.redis")
    theirs = {*redis.Channel.from_transport_options, *redis.SentinelChannel.from_transport_options}
    every_transport_has = set(redis.virtual.Channel.from_transport_options)
    assert theirs - every_transport_has <= LEFT_OVER.keys()


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a program where zkrq is installed with its entry points."""
    (tmp_path / "zkrq-9.dist-info").mkdir()
    (tmp_path / "zkrq-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: zkrq\nVersion: 9\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in named.items()) for group, named in points.items()]
    (tmp_path / "zkrq-9.dist-info" / "entry_points.txt").write_text("".join(lines))
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_settings_need_no_import(installed: dict[str, str]) -> None:
    code = """
import sys
from celery import Celery
app = Celery("shop", broker="zkrq://", broker_transport_options={"redis": ["redis://a"]})
assert "zkrq" not in sys.modules
print(app.connection_for_write().get_transport_cls().__module__, app.connection_for_write().as_uri())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=installed)
    assert told.stdout.split() == ["zkrq.kombu", BROKER_URL]


def test_settings_of_django_need_no_import(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "shop_settings.py").write_text(
        "SECRET_KEY = 'x'\nCELERY_BROKER_URL = 'zkrq://'\nCELERY_BROKER_TRANSPORT_OPTIONS = {'redis': ['redis://a']}\n"
    )
    code = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
import django
django.setup()
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
print(app.connection_for_write().get_transport_cls().__module__)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=installed)
    assert told.stdout.split() == ["zkrq.kombu"]


def test_settings_name_the_transport_without_importing_anything() -> None:
    """As in docs/celery.md for Django."""
    code = """
import sys
from celery import Celery
app = Celery("shop")
app.conf.update(broker_transport="zkrq.kombu:Transport", broker_transport_options={"redis": ["redis://a"]})
assert "zkrq" not in sys.modules
print(app.connection_for_write().get_transport_cls().__module__, app.connection_for_write().as_uri())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["zkrq.kombu", BROKER_URL]


def test_the_order_of_a_queue_needs_no_option(options: dict[str, Any]) -> None:
    with sync.connect(**options) as cluster:
        cluster.queue("orders", codec=zkrq.RAW).set_groups(zkrq.Groups(ordered=True))
    app = Celery("shop", broker=BROKER_URL, broker_transport_options=options)

    @app.task(name="change", shared=False)
    def change() -> None: ...

    with pytest.raises(zkrq.ConfigError, match="Groups\\(ordered=True\\)"):
        change.apply_async(countdown=1, queue="orders")
    change.apply_async(countdown=1, queue="others")
    app.pool.force_close_all()


def test_servers_drop_expired_tasks_where_they_are_told_to(options: dict[str, Any], jobs: sync.Queue[bytes]) -> None:
    app = Celery(
        "shop",
        broker=BROKER_URL,
        broker_transport_options={**options, "drop_expired": True},
        task_default_queue="jobs",
    )
    app.send_task("remind", expires=86400)
    app.send_task("remind", expires=-1)  # for the worker to revoke, as the next one
    app.send_task("remind", expires=60, countdown=61)
    assert sorted(item.expires_in is None for item in jobs.scan()) == [False, True, True]
    app.pool.force_close_all()
