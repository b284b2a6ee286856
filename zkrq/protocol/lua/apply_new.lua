#!lua
-- purpose: apply.lua for new items, which a full server refuses; what frees memory must never be refused.
-- body: apply
