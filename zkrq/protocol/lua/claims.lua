#!lua flags=allow-oom
-- purpose: name the claims of one owner as this server knows them, a page a call.
-- cursor: 0 to begin, then what the last call returned, until that is 0.
-- KEYS: server records holdings owners fenced_owners
-- ARGV: epoch generation owner cursor
-- reply: OK cursor [id]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record owners claims
local next_cursor, ids = claims_page(owner, cursor)
return {'OK', next_cursor, ids}
