-- One member of the index, visited by the sweep: a claim whose lease is over becomes unknown, a member without an open
-- record is dropped, a member at the wrong place is moved.
if state == 0 or state == COMPLETED then
  redis.call('ZREM', open, member)
  return { 'gone' }
end
if lapse() then
  save_lapsed()
  return { 'lapsed' }
end
redis.call('ZADD', open, digits((state == CLAIMED and CLAIMS_FROM or 0) + moment), member)
return { 'kept' }
