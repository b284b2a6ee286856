-- purpose: remember whether a large payload ever came to this queue on this server.  Only then the size of each payload
-- is checked before it is handed out: if all are small, the number of items bounds a reply well enough.

-- Call it before the payloads of a bundle of this size are stored.
local function note_size(payload, size)
  local LARGE = 2048 -- bytes of a payload that is large
  if #payload > LARGE * size and number('large') == 0 then set_number('large', 1) end
end
