"""The rules of the protocol, each of which can be switched off."""

from __future__ import annotations

from tests.model.said import Said


class Rule(Said):
    """Number of the rule in the contract, 0 for what its text says; what it says; what goes wrong without it."""

    GREATER_VERSION_WINS = (
        1,
        "apply installs a record only if its version is greater than the one held",
        "a late copy of a claim comes after the ack and revives the item",
    )
    SUPERSEDED_IS_TOLD = (
        1,
        "apply says when it holds a greater version, and a claim that hears it is not given out",
        "a consumer works on an item about which another client has decided since",
    )
    SUPERSEDED_BY_ITEM = (
        1,
        "apply says at which items the greater version says otherwise",
        "a decision about another item of the bundle withholds a claim that stands",
    )
    CLAIM_IS_EVERYWHERE = (
        2,
        "an item is handed to a consumer only after every server of the view has its claim",
        "the primary dies, and the next one hands the item to another consumer",
    )
    OLD_EPOCH_IS_STALE = (
        3,
        "a script under an older epoch than the server has seen is refused",
        "a client with an old view decides at a server that is no longer the primary",
    )
    GENERATION_IS_COMPARED = (
        3,
        "a script names the generation of the server it is meant for",
        "a server that was wiped and enrolled anew is taken for the one that had everything",
    )
    MISSING_IS_NOT_CREATED = (
        3,
        "a server that knows no generation refuses, and none is created on the way",
        "a server that was flushed goes on as an empty member",
    )
    RUN_ID_IS_COMPARED = (
        3,
        "every connection checks that it leads to the life of the server that the view names",
        "a server that came back from an old dump, generation and all, counts as in sync",
    )
    LAST_VIEW_IS_COVERED = (
        4,
        "a push is complete when the view after the last compare-and-set is covered by the answers",
        "the client evicts a server and returns, not knowing the learner that has joined meanwhile",
    )
    DECIDED_AGAIN = (
        5,
        "after a change of the view, what was decided is decided again at the new primary",
        "a record of the old primary meets one that the new primary has decided since",
    )
    STAMPED_ANEW = (
        5,
        "what is decided again gets a version of the new epoch",
        "the old version loses against what was decided between the two",
    )
    REPEATED_CLAIM_GETS_THE_SAME = (
        6,
        "a claim request repeated with the same token returns the same items",
        "the first answer was lost and its items wait for their deadline",
    )
    FENCED_TOKEN_IS_REFUSED = (
        6,
        "a claim request under a token that was fenced is refused",
        "a claim request that comes late takes an item for a consumer that is dead",
    )
    SETTLING_CHECKS_THE_TOKEN = (
        6,
        "only the holder of a claim may settle it",
        "a consumer that was paused beyond its lease acks an item that another consumer works on",
    )
    TURN_FINDS_ITS_OWN = (
        6,
        "a repeated turn finds settled what it has queued again, if its own request was given that item",
        "a consumer hears that the claim which it gave back was lost, and the same answer hands it the item again",
    )
    EACH_PART_HAS_A_VERDICT = (
        6,
        "a turn whose claim request is refused says beside that what became of its settlements",
        "the turn is repeated, its owner was fenced meanwhile, and the consumer hears that nothing happened",
    )
    ROWS_STAY = (
        6,
        "the row of a claim stays in the record as long as an item names it, whatever became of the item",
        "a repeated ack is not recognised, and refused",
    )
    REFUSAL_IS_SPREAD = (
        6,
        "a refused settlement learns the record that refuses it, and has every server apply it",
        "the refusal rests on a record that only the primary has, and goes with it",
    )
    VIEW_BY_COMPARE_AND_SET = (
        7,
        "the view changes only by compare-and-set, and the loser starts again from the new one",
        "an eviction is undone by a client that had not seen it",
    )
    TOMBSTONE_STAYS = (
        8,
        "a removal leaves a tombstone",
        "a late copy of the push revives the item",
    )
    TOMBSTONE_OF_THE_UNKNOWN = (
        8,
        "a removal leaves a tombstone also where the item is not known",
        "the push, late on its way to that server, comes after the removal",
    )
    CATCH_UP_COPIES_TOMBSTONES = (
        8,
        "catch-up copies tombstones",
        "a server that joined since does not refuse the late push",
    )
    TOMBSTONES_ARE_KEPT = (
        8,
        "tombstones outlive every message that is on its way",
        "a late push finds nothing that refuses it",
    )
    SOURCE_ADOPTS_BEFORE_READING = (
        9,
        "the call that reads for a catch-up carries the epoch",
        "a write that does not know the learner comes to the source after it was read",
    )
    LEARNERS_GET_EVERY_WRITE = (
        9,
        "a learner gets every write from the moment it is in the view",
        "what is written during the catch-up is missing on the new member",
    )
    WIPING_IS_COMPARE_AND_SET = (
        10,
        "wiping a server names the generation that it has",
        "a late duplicate wipes a server that is in sync again",
    )
    BYTES_GO_LAST = (
        8,
        "a payload is dropped only once every server of the view knows of the removal",
        "a late ack takes it from all servers that a new primary has the item live on again",
    )
    PAYLOADS_BY_POSITION = (
        8,
        "a server that lacks the payload of any item that lives says so, and is given it",
        "an item of a bundle of which another one is complete has no payload on a follower",
    )
    PRIMARY_DECIDES = (
        0,
        "the primary alone decides, the others apply",
        "servers that judge a settlement for themselves come to different results",
    )
    CLAIMS_HAVE_A_DEADLINE = (
        0,
        "a claim ends by its deadline, also where no client knows of it",
        "a claim request executed late claims an item for a consumer that will never hear of it",
    )

    SURVIVORS_ANSWER = (
        0,
        "a client that evicts a server has an answer of every member that stays",
        "a client that is cut off from the healthy servers evicts them, and keeps one that is dead",
    )
    PUSH_NEEDS_MIN_REPLICAS = (
        0,
        "no push completes in a view with fewer than min_replicas members",
        "the server evicted last does not hold every pushed item, and the last member's disk may have lost it",
    )
    ELIGIBLE_TAKE_PART = (
        0,
        "in a recovery, a server that was evicted while the view fell below min_replicas counts like a member",
        "the last member's disk has lost what the evicted one still holds",
    )
    ELIGIBLE_IS_KEPT = (
        0,
        "an eligible server that was only out of reach is not wiped when it comes back: what it missed is added",
        "the last member fails while the only other full copy has just been wiped",
    )
    ELIGIBLE_UNTIL_ANSWERED = (
        0,
        "a server stays eligible until all members have answered in a view in which pushes complete without it",
        "the new member has lost its memory just before, the last one fails, and the only full copy no longer counts",
    )
    CATCH_UP_NEEDS_ALL_MEMBERS = (
        0,
        "a server is wiped and brought back only by a client that reaches all members",
        "after a power cut, what an eligible server holds is wiped before the recovery",
    )
    RECOVERY_ONLY_OF_THE_DEAD = (
        0,
        "there is a recovery only when no member is in the life that the view knows",
        "a member goes on taking writes while others are given what it had before",
    )
    RECOVERY_WAITS_FOR_ALL = (
        0,
        "a recovery waits until all members and all eligible servers answer",
        "the server that does not answer had what the disks of the others lost",
    )
    RECOVERY_MERGES = (
        0,
        "in a recovery the greatest version of every item wins, whichever server has it",
        "one disk is taken for the truth, and it has lost something",
    )
    RECOVERY_BY_GENERATION = (
        0,
        "only servers whose generation is the view's take part in a recovery",
        "what a server held long ago comes back with its old dump",
    )
    RENEWED_ARE_RECOGNISED = (
        0,
        "the new generation follows from the old one alone, so a recovery left in the middle can be continued",
        "an eviction from before the power cut changes the view meanwhile, and no server has the generation any more",
    )
    RECOVERY_RENEWS_GENERATIONS = (
        0,
        "after a recovery every server has a new generation",
        "a dump from before the recovery is taken for one from after it",
    )

    LIMIT_COUNTS_CLAIMED = (
        0,
        "a claim request gets no more than the limit leaves of the items that are claimed, as the primary knows it",
        "more items are held at once than the limit",
    )
    REPEATED_WITHIN_THE_LIMIT = (
        0,
        "a repeated request gets no more than the limit of what several primaries have given it",
        "the one before had decided about some items, as not every server has heard, and the next one about others",
    )
    GROUP_COUNTS_CLAIMED = (
        0,
        "a claim request gets no more of a group than its limit leaves of the items that are claimed",
        "more items of a group are held at once than its limit",
    )
    REPEATED_WITHIN_THE_GROUP = (
        0,
        "a repeated request gets no more of a group than its limit of what several primaries have given it",
        "the one before had decided about some items of the group, and the next one about others",
    )

    ORDER_IS_DECIDED = (
        0,
        "the primary gives each push into an ordered group an order above all that it knows",
        "the producers' clocks reverse pushes that followed one another",
    )
    PLAIN_IS_REFUSED_IN_ORDER = (
        0,
        "a server that knows that the queue keeps an order takes no plain push",
        "a producer that has not heard of the order gives its item the place of its own clock",
    )
    ORDER_BY_SETTINGS = (
        0,
        "the primary gives a push a place in the order because the queue keeps one, whatever its producer knows",
        "a producer that has not heard of the order pushes an item that has no place in it",
    )
    TOKENS_BY_SETTINGS = (
        0,
        "the primary numbers each claim of a group because the queue keeps an order, above all claims of before",
        "an item that was pushed before the order was declared is claimed under a smaller token than the one before it",
    )
    ORDERED_ONE_BY_ONE = (
        0,
        "an ordered group hands out nothing while one of its items is claimed",
        "an item is handed out before an earlier one has ended",
    )
    END_TRAVELS_WITH_THE_NEXT = (
        0,
        "the end of an item travels with the claim of the next one of its group",
        "the primary dies, and the next one, which has not heard of that end, delivers the item again",
    )
    REPEATED_IN_ORDER = (
        0,
        "a repeated request is given an item only if it is the first of its group and the only one claimed",
        "a server that learned of the claim by another path hands it out, and later the item before",
    )
    TOKENS_GROW_IN_A_GROUP = (
        0,
        "the n of a claim exceeds that of all claims of ordered items that the server has seen",
        "a database that fences by the token refuses the write of a later item",
    )

    SILENCE_NEEDS_STANDING = (
        0,
        "a server's silence evicts it only for a client that it has answered in this life; others accuse it first",
        "a client behind a broken link evicts every life of a healthy server that the others admit",
    )
    EVICTING_COSTS_STANDING = (
        0,
        "a client that has evicted a process for its silence has no standing against the next life of that process",
        "a client whose link breaks again and again evicts as often",
    )
    ACCUSATION_IS_REFUTED = (
        0,
        "a client that reaches an accused server refutes the accusation",
        "no client contradicts one behind a broken link, and its accusations become evictions",
    )

    CONTRADICTED_RETRIES = (
        0,
        "a client that others contradict retries its calls within their time",
        "a server that hangs for a moment fails the calls of a client, and answers all clients again",
    )

    DENIAL_IS_ACCUSED = (
        0,
        "a client accuses a server that keeps it out, if this life of the server has let it in before",
        "one server that keeps everybody out halts all clients",
    )
    DENIAL_NEEDS_OTHERS = (
        0,
        "a server that keeps a client out is evicted only if it lets in none of the others",
        "a client with an old password evicts every life of a healthy server that the others admit",
    )

    WRONG_CLOCK_LEAVES = (
        0,
        "a server that refuses a push for its age, because its clock differs from the majority's, leaves the view",
        "one server's clock is set, and nearly every push of every client has an unknown outcome",
    )

    SCRUB_DECIDES = (
        0,
        "where servers differ, the primary decides anew what it knows",
        "a follower that has a greater version, from a decision that reached nobody else, goes on having it",
    )
    SCRUB_ROLLS_FORWARD = (
        0,
        "a push that only a follower knows of, older than any push on its way, is carried on",
        "a producer died in the middle, and the servers differ for ever",
    )

    RESULT_IS_EVERYWHERE = (
        2,
        "every server of the view knows the end of an item before a caller learns of it",
        "the primary dies, and the next one tells another caller something else, or hands the item out",
    )
    RESULT_IS_COMPLETED = (
        1,
        "a record that comes without the result of one of its items is completed by the one that has it",
        "the ack of another item overtakes the one that has the result on its way to a follower, which becomes primary",
    )
    SAVE_NEEDS_THE_CLAIM = (
        0,
        "a save needs the claim",
        "a consumer that was paused beyond its lease overwrites what the next one has saved",
    )
    SAVED_TEXT_HAS_A_VERSION = (
        0,
        "a saved state names the version that saved it, and only a greater one takes its place",
        "the apply of an earlier save comes late, and brings back the older state",
    )
    SAVED_IS_EVERYWHERE = (
        0,
        "a claim that gives a saved state takes it to every server first, as saved by its own version",
        "the holder was given what one server alone has, and after that has died the next one is given less",
    )
    SAVES_ARE_NUMBERED = (
        0,
        "saves of a claim are numbered, and one that is executed late changes nothing",
        "a first try is executed after its repetition and a later save, and takes the place of that",
    )
    SAVED_TEXT_GOES_LAST = (
        0,
        "a removal leaves the saved state, which is dropped once every server knows of the removal",
        "the next primary has not heard of the removal, and gives the item out again, without its state",
    )
    LEVEL_RAISES_THE_EPOCH = (
        0,
        "a view of another level has a new epoch",
        "a client that does not speak the level goes on under the view that it has, and reads what it cannot",
    )
    LEVEL_IS_READ_WITH_THE_VIEW = (
        0,
        "a client that reads a view of a level that it does not speak does nothing more",
        "it adopts the view, and reads what it cannot",
    )
    HELD_ELSEWHERE = (
        0,
        "once a queue needs a home, other shards hand nothing out",
        "what was pushed there before is claimed beside what is at home, over the limit and out of order",
    )
    HOME_FIRST = (
        0,
        "an item is at home before its shard lets it go",
        "a client dies in between, and the item is on no shard",
    )
    ADOPTED_EVERYWHERE = (
        0,
        "adopted items are on all servers of home before the client that goes on has their shard let them go",
        "the primary fails, which alone had adopted an item, and the item is on no shard",
    )
    NOT_DUE = (
        0,
        "home hands out no item that it has adopted before its shard has decided",
        "its shard hands it out, too, or an operator removes it there",
    )
    ENDED_FOR_GOOD = (
        0,
        "home forgets an adopted item only if it has ended on its shard for good",
        "a consumer has it, lets it be queued again, another client brings it, and then the first one has it forgotten",
    )
    FLOW_ASKS_ALL = (
        0,
        "a flow ends only if no server in sync knows of a member that lives",
        "the primary alone has an ack, dies, and the next one delivers the member after what follows the flow",
    )
    FLOW_WAITS_FOR_OTHERS = (
        0,
        "no flow ends while a server is caught up, or may come back with what it has",
        "it has taken a push of a member that no other server knows, and brings it back",
    )
    STAMP_IS_READ_FIRST = (
        0,
        "the stamp of a flow is read before servers are asked",
        "a member came in between, and the end is decided under the stamp that it has raised",
    )
    LIFE_RAISES_THE_STAMP = (
        0,
        "a decision by which a member comes to life raises the stamp of its flow",
        "a member comes after a server was asked, and nothing tells",
    )
    PUSH_LOOKS_AT_ITS_FLOW = (
        0,
        "a server takes a plain push of a member only while it knows the flow as open",
        "a maker that was slow pushes into a flow that has ended",
    )
    MISSED_IS_NOT_DONE = (
        0,
        "a flow is done only if no server in sync knows of a member that ended otherwise than by an ack",
        "a cancel has reached one server alone, which leads later: what remains contradicts the outcome",
    )
    END_IS_DECIDED_ONCE = (
        0,
        "only a flow that runs is ended",
        "it was cancelled, and is done after that",
    )
    OPENING_MOVES_THE_STATE = (
        0,
        "what follows a flow is there from the start, and opening it moves its state",
        "two clients end the flow, and each pushes what follows",
    )
    LOOKS_END_WHAT_IS_DUE = (
        0,
        "any client that looks ends a flow that is due, and opens what is held",
        "the client that acked the last member has died, and nothing follows",
    )
    FAILING_WAITS = (
        0,
        "a flow that fails ends when its claimed members have ended",
        "what follows the failure runs beside a member",
    )
    ENDED_STAYS_DUE = (
        0,
        "a flow that has ended stays due until each of its queues has opened what it holds",
        "the client dies that has ended it, and nothing follows",
    )
    HOME_NAMES_ITS_LEGS = (
        0,
        "home names a queue before a member of the flow is pushed there",
        "that queue is not asked",
    )
    LEG_RAISES_HOMES_STAMP = (
        0,
        "a push into a leg raises home's stamp before it returns",
        "a leg is asked, a member elsewhere adds to it and is acked, and the other queue is asked",
    )
    SEAL_IS_EVERYWHERE = (
        0,
        "every server knows that a flow is sealed before it is asked what is left",
        "a server takes a plain push of a member after it was asked",
    )
    LEGS_ARE_SEALED = (
        0,
        "each leg is sealed before its servers are asked",
        "a server takes a plain push of a member after it was asked",
    )
    NESTED_IS_FIRST = (
        0,
        "what stands for an inner flow is everywhere before a member of that is pushed",
        "the outer flow ends while members of the inner one live",
    )
    RELEASE_NEEDS_ACKS = (0, "a member waits until all that it names were acked", "a step runs before one it needs")
    PUSH_NAMES_ITS_MAP = (
        0,
        "a push is placed by a shard map, and sent only under a view that asks for no newer one",
        "a client that has not heard of a shard, or of its removal, pushes where nobody looks for its items",
    )
    MAP_RAISES_THE_EPOCH = (
        0,
        "a view that asks for a newer map has a new epoch, and all its servers adopt it before anything relies on it",
        "a push that was begun under the view before completes",
    )
    MAP_BY_COMPARE_AND_SET = (
        0,
        "the map changes only by compare-and-set, and the loser starts again from the new one",
        "a shard that was closed is open again, or one that was added is forgotten",
    )
    HOME_BY_COMPARE_AND_SET = (
        0,
        "a queue's home is written once",
        "two clients with different maps choose different homes",
    )
    IDENTITY_GOES_HOME = (
        0,
        "all items of a queue that have an identity go to its home",
        "two shards, neither of which knows the other's, take the same id",
    )
    REPEATED_GOES_WHERE_IT_WENT = (
        0,
        "a push that is repeated under the id of its first try goes to the shard that the id names",
        "the first try may have written it elsewhere",
    )
    UNKNOWN_STAYS = (
        0,
        "a push goes to another shard only if nothing happened on the first one",
        "what had an unknown outcome has happened, and exists twice",
    )
    TOUCHED_STAYS = (
        0,
        "a push that some server may have, and that meets a newer map, is not placed anew",
        "a server of one shard has it when it is written on another one",
    )
    STAYS_BY_THE_NEWER_MAP = (
        0,
        "a push that some server may have is repeated there under a newer map only if that map leaves it there",
        "its shard is closed, was looked through, and is removed with it",
    )
    HOMES_COME_FIRST = (
        0,
        "before the shards of the hash change, the homes of the queues that are there are registered",
        "an id that was pushed before the change is pushed again, to another shard",
    )
    REGISTERED_WHILE_SETTLING = (
        0,
        "who knows that the map is settling registers a queue's home before it uses it",
        "a queue that was not listed is used by the old hash, and then by the new one",
    )
    REGISTERED_UNDER_ITS_MAP = (
        0,
        "a home is registered only while the map by which it was chosen is the present one",
        "a slow client registers its choice after others have used the new hash",
    )
    HASHED_ASK_FOR_THE_MAP = (
        0,
        "before the shards of the hash change, the servers of all of them refuse pushes by older maps",
        "a client that knows an older map pushes to a home by the old hash, after the queues were listed",
    )
    RETURNING_ARE_WAITED_FOR = (
        0,
        "before the shards of the hash change, queues are listed once no other server can come back with its data",
        "one that was evicted below min_replicas takes an id by an older map, which is repeated at another home",
    )
    JOINING_TAKES_NOTHING = (
        0,
        "a shard that joins takes no pushes, and is no home",
        "it is chosen as the home of a queue whose ids are on the first shard",
    )
    CLOSED_TAKES_NOTHING = (
        0,
        "no push is placed on a closed shard, whatever is at home there",
        "the shard was looked through, and is removed with what came since",
    )
    REMOVAL_ASKS_FOR_THE_MAP = (
        0,
        "the servers of a closed shard refuse pushes by older maps, before they are looked through",
        "a client that does not know that it is closed pushes after that",
    )
    REMOVED_ONLY_EMPTY = (
        0,
        "a shard is removed only if no item is left in it",
        "what is left is lost",
    )
    REMEMBERED_IDS_KEEP_A_HOME = (
        0,
        "the home of a queue is not removed while it remembers ids of items that are gone",
        "such a push is repeated at the next home",
    )
    REMOVED_LATE = (
        0,
        "a shard is removed only after nobody repeats a push that went there",
        "there is another shard of that name by then, which does not know the id",
    )
    VIEW_ENDS_UNCHANGED = (
        0,
        "a view is ended only if it is the one under which nothing was found",
        "somebody has opened the shard again meanwhile",
    )
    OPENED_UNDER_A_NEW_VIEW = (
        0,
        "a shard that was closed gets another view before it takes pushes again",
        "somebody who found it empty before removes it",
    )


Rules = frozenset[Rule]

ALL_RULES: Rules = frozenset(Rule)
