"""Checked by pyright in strict mode, never run: the codec gives the type of a queue's items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic

import zkrq
from zkrq.typed import Json, MsgPack, Pydantic


class Paid(msgspec.Struct, tag=True):
    id: str


class Sent(msgspec.Struct, tag=True):
    id: str
    parcel: int


Event = Paid | Sent


class Order(pydantic.BaseModel):
    id: str


class Refund(pydantic.BaseModel):
    amount: float


@dataclass
class Point:
    x: int


class Email(TypedDict):
    to: str


ORDERS = Pydantic(Order)
EVENTS: zkrq.Codec[Event] = MsgPack(Event)


async def use(cluster: zkrq.Cluster) -> None:
    paid = cluster.queue("paid", codec=MsgPack(Paid))
    assert_type(paid, zkrq.Queue[Paid])
    assert_type(cluster.queue("events", codec=MsgPack(Paid | Sent)), zkrq.Queue[Paid | Sent])
    assert_type(cluster.queue("events", codec=EVENTS), zkrq.Queue[Paid | Sent])
    assert_type(cluster.queue("points", codec=Json(Point)), zkrq.Queue[Point])
    assert_type(cluster.queue("emails", codec=Json(Email)), zkrq.Queue[Email])
    assert_type(cluster.queue("batches", codec=Json(list[Paid])), zkrq.Queue[list[Paid]])
    assert_type(cluster.queue("orders", codec=ORDERS), zkrq.Queue[Order])
    assert_type(cluster.queue("money", codec=Pydantic(Order | Refund)), zkrq.Queue[Order | Refund])
    assert_type(cluster.queue("perhaps", codec=Pydantic(Order | None)), zkrq.Queue[Order | None])

    await paid.push(Paid("7"))
    await paid.push(Sent("7", 5))  # pyright: ignore[reportArgumentType]
    await paid.push({"id": "7"})  # pyright: ignore[reportArgumentType]
    await paid.push_many([Paid("7"), Sent("7", 5)])  # pyright: ignore[reportArgumentType]
    async for claim in cluster.queue("events", codec=EVENTS).pop():
        async with claim:
            match claim.item:
                case Paid(id=id):
                    assert_type(id, str)
                case Sent(parcel=parcel):
                    assert_type(parcel, int)

    wrong: zkrq.Queue[Sent] = cluster.queue("wrong", codec=MsgPack(Paid))  # pyright: ignore[reportAssignmentType, reportArgumentType]
    assert_type(wrong, zkrq.Queue[Sent])


def every_codec_is_one(codec: zkrq.Codec[Any]) -> list[zkrq.Codec[Any]]:
    return [codec, MsgPack(Paid), Json(Point), ORDERS]


MsgPack("Paid, quoted and wrong")  # pyright: ignore[reportArgumentType]
Json(5)  # pyright: ignore[reportArgumentType]
