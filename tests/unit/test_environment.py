"""``connect()`` and the environment: which wins, what a variable means, and which one is wrong."""

from __future__ import annotations

import inspect
import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import zkrq
from zkrq.base import credentials
from zkrq.base.credentials import Source
from zkrq.base.errors import ConfigError
from zkrq.base.settings import DEFAULTS, Settings
from zkrq.cli.command import CONNECTION, settings_of
from zkrq.cli.parsing import make_parser
from zkrq.cli.running import COMMANDS
from zkrq.client.addresses import choose_name, join_hosts, name_servers
from zkrq.client.environment import VARIABLES, complete, read_flag, read_servers, variable_of
from zkrq.protocol.view import ServerId

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

SetVariable = Callable[[str, str], None]

TEXTS: dict[str, tuple[str, object]] = {
    "redis": ("redis://one,redis://two", ["redis://one", "redis://two"]),
    "zookeeper": ("zk1,zk2", "zk1,zk2"),
    "redis_auth": (":a:b", ("", "a:b")),
    "redis_tls": ("1", zkrq.TLS()),
    "zookeeper_auth": ("app:a:b", ("app", "a:b")),
    "zookeeper_tls": ("check_hostname=0", zkrq.TLS(check_hostname=False)),
    "namespace": ("shop", "shop"),
    "found": ("true", True),
    "min_replicas": ("3", 3),
    "description": ("mailer", "mailer"),
    "auto_upgrade": ("1", True),
    "session_timeout": ("5", 5.0),
    "command_timeout": ("0.5", 0.5),
    "operation_timeout": ("20", 20.0),
}
"""A text for every variable, and its value."""

WRONG = {
    "redis": "http://one",
    "zookeeper": "zk1:no",
    "redis_auth": "secret",
    "redis_tls": "ca_certs=",
    "zookeeper_auth": ":secret",
    "zookeeper_tls": "ca_certs=/no/such/file.pem",
    "namespace": "a b",
    "found": "perhaps",
    "min_replicas": "0",
    "auto_upgrade": "perhaps",
    "session_timeout": "-1",
    "command_timeout": "soon",
    "operation_timeout": "1000",
}
"""A wrong text for every variable that can be wrong."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in VARIABLES:
        monkeypatch.delenv(variable_of(setting), raising=False)
        monkeypatch.delenv(f"{variable_of(setting)}_FILE", raising=False)


def test_each_argument_has_a_variable() -> None:
    assert VARIABLES.keys() == inspect.signature(zkrq.connect).parameters.keys() - {"on_event"}
    # A shard that is added is founded at the level of its namespace; what a command does says whether it only looks.
    inner = {"on_event", "level", "only_looks"}
    assert {each.name for each in fields(Settings)} - inner <= VARIABLES.keys()
    assert TEXTS.keys() == VARIABLES.keys()


def test_flags_of_the_command_line_are_settings() -> None:
    """Those that everybody may see."""
    named = {flag.name.replace("-", "_") for flag in CONNECTION}
    assert named == VARIABLES.keys() - {"found", "min_replicas", "redis_auth", "zookeeper_auth", "auto_upgrade"}
    for flag in CONNECTION:
        default = getattr(DEFAULTS, flag.name.replace("-", "_"), None)
        assert flag.default is None
        assert default is None or f"default: {default}".removesuffix(".0") in flag.help


@pytest.mark.parametrize("setting", TEXTS)
def test_argument_then_variable_then_default(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = TEXTS[setting]
    assert complete({setting: None}) == {}
    monkeypatch.setenv(variable_of(setting), "")
    assert complete({setting: None}) == {}
    monkeypatch.setenv(variable_of(setting), text)
    assert complete({setting: None}) == {setting: value}
    assert complete({setting: "given"}) == {setting: "given"}


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_variable_is_named(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("redis", "zookeeper"):
        monkeypatch.setenv(variable_of(needed), TEXTS[needed][0])
    monkeypatch.setenv(variable_of(setting), WRONG[setting])
    with pytest.raises(ConfigError, match=variable_of(setting)) as caught:
        zkrq.connect()
    assert "secret" not in str(caught.value)


def test_connect_needs_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, (text, _) in TEXTS.items():
        monkeypatch.setenv(variable_of(setting), text)
    monkeypatch.setenv("ZKRQ_MIN_REPLICAS", "2")
    monkeypatch.setenv("ZKRQ_REDIS", "rediss://one,rediss://two")
    assert zkrq.connect().namespace == "shop"
    assert zkrq.connect(namespace="other", session_timeout=timedelta(seconds=3)).namespace == "other"
    monkeypatch.delenv("ZKRQ_NAMESPACE")
    assert zkrq.connect().namespace == DEFAULTS.namespace


@pytest.mark.parametrize("missing", ["redis", "zookeeper"])
def test_servers_have_no_default(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"redis": ["redis://one"], "zookeeper": "zk1"}
    del given[missing]
    with pytest.raises(ConfigError, match=f"{missing} is not given, and {variable_of(missing)} is not set"):
        zkrq.connect(**given)


def test_texts() -> None:
    assert read_servers(" a=redis://one , b=redis://two,") == {"a": "redis://one", "b": "redis://two"}
    assert read_servers("redis://one?db=1,redis://two") == ["redis://one?db=1", "redis://two"]
    for url in ("redis://:half,other@one", "redis://:half,o=ther@one", "redis://:half,redis=x@one"):
        assert read_servers(f"{url},redis://two") == [url, "redis://two"]
        assert read_servers(f"a={url}, b=unix:///two") == {"a": url, "b": "unix:///two"}
    assert [read_flag(text) for text in ("1", "0", "Yes", "off")] == [True, False, True, False]


def test_hosts_of_zookeeper_may_be_a_list() -> None:
    assert join_hosts(["zk1:2181", "zk2/apps"]) == "zk1:2181,zk2/apps"
    bad: list[Any] = [[], ["zk1/apps", "zk2/apps"], [7], [""], b"zk1"]
    for hosts in bad:
        with pytest.raises(ConfigError):
            join_hosts(hosts)


@pytest.mark.parametrize("twin", ["redis://127.0.0.1:6379", "redis://[::1]", "redis://localhost:6379/0"])
def test_one_server_under_two_names_of_this_machine(twin: str) -> None:
    with pytest.raises(ConfigError, match=r"names one server twice.* N copies need N servers"):
        name_servers(["redis://localhost", twin, "redis://10.0.0.1"])
    with pytest.raises(ConfigError, match=r"localhost:6379.* N copies need N servers"):
        name_servers({"a": "redis://localhost", "b": twin})
    assert len(name_servers(["redis://localhost:6380", twin, "redis://127.0.0.2:6379"])) == 3


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = f"rediss://one?ssl_ca_certs={tmp_path}/ca.pem"
    with pytest.raises(ConfigError, match=r"there is no file '.*ca\.pem', which ssl_ca_certs in its URL names"):
        name_servers([url])
    (tmp_path / "ca.pem").touch()
    assert list(name_servers([url]).values()) == [url]


# -- files of secrets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", TEXTS)
def test_a_file_stands_in_for_each_variable(setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text, value = TEXTS[setting]
    file = tmp_path / "secret"
    file.write_text(f"{text}\n")
    monkeypatch.setenv(f"{variable_of(setting)}_FILE", str(file))
    found = complete({setting: None})[setting]
    assert found == (zkrq.LoginFile(file) if setting.endswith("_auth") else value)
    assert complete({setting: "given"}) == {setting: "given"}
    monkeypatch.setenv(variable_of(setting), text)
    with pytest.raises(ConfigError, match=rf"{variable_of(setting)} and {variable_of(setting)}_FILE are both set"):
        complete({setting: None})


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_file_is_named_and_not_quoted(setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    monkeypatch.setenv(f"{variable_of(setting)}_FILE", str(file))
    with pytest.raises(ConfigError, match=rf"{variable_of(setting)}_FILE.*: .*No such file"):
        complete({setting: None})
    file.write_text(WRONG[setting])
    with pytest.raises(ConfigError, match=f"{variable_of(setting)}_FILE") as caught:
        complete({setting: None})
    assert "secret" not in str(caught.value).replace(str(file), "")


def test_a_login_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_text("app:old\n")
    login = zkrq.LoginFile(file)
    assert login() == ("app", "old")
    file.write_text("app:new\napp:old\n")
    assert login() == [("app", "new"), ("app", "old")]
    for wrong in ("", "\n", "app", "a:b\n" * 9):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="user:password expected"):
            login()


def test_credentials_have_no_repr(tmp_path: Path) -> None:
    assert "secret" not in repr(Source("redis_auth", ("app", "secret")))
    (tmp_path / "login").write_text("app:secret")
    assert repr(Source("redis_auth", zkrq.LoginFile(tmp_path / "login"))).count("login") == 1


@pytest.mark.anyio
async def test_credentials_that_cannot_be_read() -> None:
    def fails() -> tuple[str, str]:
        raise KeyError("secret")

    with pytest.raises(ConfigError, match=r"redis_auth cannot be read from .*: KeyError") as caught:
        await Source("redis_auth", fails).logins()
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    wrong: list[Any] = ["app:secret", ("app",), ("app", 7), ("a:b", "x"), [], 7, ("app", "\ud800"), [("a", "b")] * 9]
    for given in wrong:
        with pytest.raises(ConfigError) as caught:
            Source("zookeeper_auth", given)
        assert "secret" not in str(caught.value)
        with pytest.raises(ConfigError):
            await Source("zookeeper_auth", lambda given=given: given).logins()
    assert await Source("redis_auth", lambda: ("", "x"), nameless=True).logins() == [("", "x")]


@pytest.mark.anyio
async def test_credentials_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "READ_SECONDS", 0.05)
    release = threading.Event()

    def hangs() -> tuple[str, str]:
        release.wait(60)
        return "", ""

    try:
        with pytest.raises(zkrq.Unavailable, match="redis_auth was not read within"):
            await Source("redis_auth", hangs).logins()
    finally:
        release.set()


def test_the_page_of_settings_lists_every_variable() -> None:
    listed = dict(re.findall(r"^- `(\w+)` \(`(ZKRQ_\w+)`[,)]", PAGE.read_text(), re.MULTILINE))
    assert listed == {setting: variable_of(setting) for setting in VARIABLES}


@pytest.mark.parametrize("text", ["redis://:half,secret@one:x", "half,secret@one", "a=redis:/:half,secret@one"])
def test_no_error_about_servers_has_a_part_of_a_password(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A comma in it ended the URL, and the rest was shown as a server."""
    monkeypatch.setenv("ZKRQ_REDIS", text)
    with pytest.raises(ConfigError) as error:
        complete({"redis": None})
    assert not re.search("half|secret", str(error.value))


def test_every_command_reads_the_passwords_of_the_environment() -> None:
    """Also those that do not connect by ``connect()``; no flag has one."""
    args = make_parser(COMMANDS).parse_args(["stats"])
    assert settings_of(args).keys() == VARIABLES.keys() - {"found", "min_replicas", "auto_upgrade"}


def test_every_name_that_a_server_may_have_can_be_written() -> None:
    """Host and port, too: that is what a server is called that was added without a name."""
    named = {"redis-1": "redis://a", "10.0.0.4:6379": "redis://10.0.0.4:6379", "/run/redis": "unix:///run/redis?db=0"}
    assert read_servers(",".join(f"{name}={url}" for name, url in named.items())) == named


def test_names_for_some_servers_only() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.4:6379' has no name") as raised:
        read_servers("redis-2=redis://b,redis://:secret@10.0.0.4:6379")
    assert str(raised.value).endswith("without a name is called 10.0.0.4:6379")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("servers", "taken", "name"),
    [
        ({"a:6379": "redis://a", "b:6379": "redis://b"}, (), "new:6379"),
        ({"redis-1": "redis://a", "redis-2": "redis://b"}, (), "redis-3"),
        ({"redis-1": "redis://a", "redis-2": "redis://b"}, ("redis-7", "mail-9", "redis"), "redis-8"),
        ({"redis-08": "redis://a", "redis-09": "redis://b"}, (), "redis-10"),
        ({"redis-2": "redis://b", "b:6380": "redis://b:6380"}, (), "redis-3"),
        ({"anna": "redis://a", "bert": "redis://b"}, (), "redis-3"),
        ({"anna": "redis://a", "bert": "redis://b"}, ("redis-3",), "redis-4"),
        ({"redis-1": "redis://a", "spare": "redis://new"}, (), "spare"),
    ],
)
def test_the_name_of_a_server_that_is_added_without_one(
    servers: dict[ServerId, str], taken: tuple[str, ...], name: str
) -> None:
    assert choose_name("redis://:secret@new:6379", servers, taken) == name
