"""Read what children say of their items: what is to become of these, how handlers have failed, how processes ended."""

from __future__ import annotations

import logging
import signal
from base64 import b64decode
from typing import TYPE_CHECKING, Any, cast

from zkrq.base import saved
from zkrq.base.checks import check_lease
from zkrq.base.codecs import codec_of_item
from zkrq.base.errors import MESSAGE_MAX, ConfigError, HandlerError, PayloadTooLarge
from zkrq.base.retry import Reject, RetryLater, Snooze
from zkrq.consuming.claims import Claim, UndecodedClaim, lease_of
from zkrq.consuming.lease import EncodedResult, Lease, Verb
from zkrq.pool.frames import UP_MAX, Told

if TYPE_CHECKING:
    from zkrq.pool.setup import PooledHandler

_log = logging.getLogger("zkrq.pool")


async def settle_as_told(claim: Claim[Any], told: Told) -> None:
    """Settle or extend a claim as a child says.  Raises as the calls of ``Claim`` do."""
    try:
        verb = Verb(told.text("verb"))
        result = b64decode(told.text("result", UP_MAX))
    except ValueError as error:
        raise ConfigError(f"a call of a handler is not known: {error}") from None
    lease, ms, text = lease_of(claim), told.number("ms"), told.text("text")
    if verb is Verb.SAVE:
        lease.issuer.check_saves()
        saved.decode(result)  # before servers keep it for others
        if len(result) > saved.SAVED_BYTES:
            raise PayloadTooLarge(len(result), saved.SAVED_BYTES)
        await lease.save(told.number("save"), result, extend=ms > 0)
        return
    if verb is Verb.NACK:
        await lease.fail(None if ms < 0 else ms / 1000, text or "nack")
    elif verb is Verb.RELEASE and ms > 0:
        await lease.put_off(ms / 1000)
    elif verb is Verb.EXTEND:
        lease.check_held()
        await lease.extend(check_lease("seconds", ms / 1000))
    else:
        if verb is Verb.ACK and result:
            lease.keep_result(EncodedResult(result))
        await lease.settle(verb, 0, text)


def why_unsaved(lease: Lease) -> str:
    """Say why nothing can be saved of an item, empty if it can."""
    try:
        lease.issuer.check_saves()
    except ConfigError as error:
        return str(error)
    return ""


def payload_of(claim: Claim[Any], handler: PooledHandler) -> bytes:
    """Return the encoded item of a claim."""
    if isinstance(claim, UndecodedClaim):
        return claim.payload
    return codec_of_item(handler.codec, claim.id).encode(claim.item)  # claimed before the pool was there


def error_of(told: Told, handler: PooledHandler, claim: Claim[Any]) -> Exception:
    """Return the error that a handler's verdict stands for."""
    if what := told.text("undecodable"):
        text = "item %s of queue %s cannot be decoded, it goes to the dead letters: %s"
        _log.error(text, claim.id, handler.queue, what, extra={"item": claim.id, "queue": handler.queue})
        return Reject(f"cannot be decoded as {handler.codec.name}: {what}")
    reason = told.text("reason")
    if told.flag("wish") and told.flag("snooze"):
        return Snooze(told.seconds("delay") or 0.0)
    if told.flag("wish"):
        return Reject(reason) if told.flag("final") else RetryLater(told.seconds("delay"), reason)
    kinds = told.values.get("kinds")
    names = tuple(str(each)[:200] for each in cast("list[object]", kinds)[:20]) if isinstance(kinds, list) else ()
    return HandlerError(told.text("message", MESSAGE_MAX), reason=reason, kinds=names, trace=told.text("traceback"))


def end_in_words(code: int) -> tuple[str, str]:
    """Return how a process has ended, as a sentence without its subject, and in short."""
    if code >= 0:
        return f"ended with exit code {code}", f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}", name
