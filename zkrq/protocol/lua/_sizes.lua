-- purpose: remember whether a large payload ever came to this queue on this server.  Only then the size of each payload
-- is checked before it is handed out: if all are small, the number of items bounds a reply well enough.
local LARGE = 2048 -- bytes

-- Call it before the payloads of a bundle of this size are stored.
local noted_large = false
local function note_size(payload, size)
  if noted_large or #payload <= LARGE * size then return end
  noted_large = true
  redis.call('HSET', lead, 'large', 1)
end
