-- One step of one gateway process: time, then its operations, each followed by every start it
-- makes possible. The same rules as memory.py, which is the version to read first. The files of
-- this folder are one script, joined in the order of script.py.
--
-- Rule 1: every loop is bounded. An endless loop after a write blocks the server for everybody.
-- Rule 2: there is no rollback: an operation makes all its checks before its first write.
-- Rule 3: whole numbers only: milliseconds, tokens, milli-tokens. Text by `text`, never tostring
--         of anything that may have fifteen digits.
-- Rule 4: counters, entries and heads change only together, are read once and written once a step.
-- Rule 5: what a step will need is fetched together (room fetch.lua): a command costs the server
--         more than what it reads.
--
-- KEYS[1] prefix. ARGV: 1 gateway, 2 previous sequence, 3 sequence, 4 flags (a adopts, 1 this
-- installation has one process, t test switch, f clock stands still but for the test switch),
-- 5 run id of the server, 6 latest ledger time the gateway knows, then three per operation.
-- The answer is one string of lines; see redis.py, which reads it.

-- Functions are fields of L, constants and names of keys fields of K, and all functions are made
-- inside one function (`define`, which script.py puts around the rooms). Both for the same reason:
-- each local of the outermost level that a function refers to is looked for in a list when the
-- function is made. That would cost a fifth of a millisecond in every step.
local L = {}
local K = {
  HANDICAP = 600000, SILENCE = 700, LIMIT = 5000, EARLIEST = 1500, LONGEST_STEP = 1000,
  NO_REPLICA = 60000,
  BINDING = 900000, PLACE_GRACE = 15000, LONG_PROMPT = 4096, MOST_BYPASSED = 8,
  LONGEST_BYPASS = 20000, MOST_SET_ASIDE = 16, OUTPUT_CAP = 512, DECAY_STEP = 60000,
  MOST_DECAYS = 200, DEFAULT_HOLD = 10000, HOLD_WEIGHT = 32, SHORTEST_RETRY = 1000,
  BATCH_USER_CAP = 2, MOST_EVICTIONS = 256, MOST_STARTS = 512, MOST_SCANNED = 512,
  NEVER = '9999999999999',
}
local floor, min, max, format, concat = math.floor, math.min, math.max, string.format, table.concat
local call = redis.call
local base = KEYS[1]
local prefix = base .. '2:' -- the layout of these keys; what follows must survive a new layout
local gateway, previous, sequence = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local adopts = ARGV[4]:find('a', 1, true)
local alone = ARGV[4]:find('1', 1, true)
local testing = ARGV[4]:find('t', 1, true)
local frozen = ARGV[4]:find('f', 1, true)
local run, known_time = ARGV[5], tonumber(ARGV[6])

K.META, K.COUNTS, K.SERVICE = prefix .. 'meta', prefix .. 'c', prefix .. 'v'
K.CONFIG, K.FLEET, K.HEADS = prefix .. 'cfg', prefix .. 'fleet', prefix .. 'h'
K.HEARD, K.DEADLINES, K.AWAITED = prefix .. 'hb', prefix .. 'd', prefix .. 'aw'
K.PLACES, K.PLACE_ENDS, K.PLACE_OF = prefix .. 'pl', prefix .. 'pl:ends', prefix .. 'pl:body'
K.USAGE, K.SUMS, K.MINUTES = base .. 'usage', base .. 'sum:', base .. 'm:'

-- Ledger time and what else META holds; read at the start of the step (room step.lua).
local now, seq, opens, clock, minute, due

-- What this step has read and changed; each is explained in its room.
local counts, counts_dirty, service, service_dirty, answers, poked = {}, {}, {}, {}, {}, {}
local policies, pools, pool_names, replicas, replica_names = {}, {}, {}, {}, {}
local entries, entries_dirty, touched, heads, heads_dirty, standing = {}, {}, {}, {}, {}, {}
local arriving, fetched, operations, starts = {}, {}, {}, 0
local fleet_line, stored_fleet
