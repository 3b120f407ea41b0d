-- record.rs: renew. Of a claim that lives only the lease is written.
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  become_granted()
  save('')
  return { 'rewritten' }
end
if lapse() then save_lapsed() end
if owner ~= token or state == COMPLETED then return { 'lost' } end
if state == UNKNOWN then return { 'lapsed' } end
moment = now + ARGV[5]
redis.call('SETRANGE', key, 80, struct.pack('>I8', moment))
redis.call('ZADD', open, digits(CLAIMS_FROM + moment), member)
return { 'extended' }
