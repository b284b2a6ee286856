#!lua flags=allow-oom
-- purpose: list the claims of one owner as this server knows them, one page per call.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server records holdings owners fenced_owners
-- ARGV: epoch generation owner cursor
-- reply: OK cursor [id]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record owners claims
local next_cursor, ids = claims_page(owner, cursor)
return {'OK', next_cursor, ids}
