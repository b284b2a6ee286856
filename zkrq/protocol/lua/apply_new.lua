#!lua
-- purpose: apply new items, as apply.lua does; a full server refuses this call, but must never refuse one that frees
-- memory.
-- body: apply
