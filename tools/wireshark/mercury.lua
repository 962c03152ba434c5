-- Wireshark dissector for Mercury's wire format (docs/protocol.md).
--
--   tshark -X lua_script:tools/wireshark/mercury.lua -r capture.pcap -Y mercury
--
-- or copy it to ~/.local/lib/wireshark/plugins/. Frames on the preferred UDP port (7470) are shown
-- as Mercury even when they are damaged; frames on other ports when nobody else sends the like.
--
-- The CRCs of an open session's frames are combined with its tag, which only its ends know. The
-- first frame of a session that is seen shows the tag; those with another one are shown as damaged.
-- Seals and what is encrypted are shown as they are: only the ends have the keys.

local mercury = Proto("mercury", "Mercury")

local kVersion = 2           -- of an open session's frames
local kHandshakeVersion = 1  -- of HELLO, HELLO_ACK and REFUSE, for ever
local kPlainHeaderBytes = 32
local kChunkHeaderBytes = 48
local kSealBytes = 16
local kSealedFlag = 4
local kEncryptedFlag = 64
local kHello, kRefuse, kAck, kPush, kResult, kReset, kPart = 1, 3, 5, 8, 9, 14, 15

local types = {
  [1] = "HELLO", [2] = "HELLO_ACK", [3] = "REFUSE", [4] = "CLOSE", [5] = "ACK", [6] = "PING",
  [7] = "CONTROL", [8] = "PUSH", [9] = "RESULT", [10] = "STREAM", [11] = "STREAM_CREDIT",
  [12] = "STREAM_RESET",
  [13] = "RESET_TOKEN",
  [14] = "RESET",
  [15] = "PART",
  [16] = "PATH_CHALLENGE",
  [17] = "PATH_RESPONSE",
  [18] = "SOURCE_PORTS",
}
-- transport/base/result.h
local codes = {
  [0] = "ok", [1] = "invalid argument", [2] = "busy", [3] = "not found", [4] = "exists",
  [5] = "unsupported", [10] = "again", [11] = "no memory", [12] = "limit", [13] = "retry",
  [20] = "unknown job", [21] = "wrong secret", [22] = "wrong sizes", [23] = "rank taken", [24] = "tensor mismatch",
  [25] = "version mismatch", [26] = "missing members", [30] = "peer lost", [31] = "peer left",
  [32] = "daemon lost", [33] = "timed out", [34] = "closed", [40] = "permission",
  [41] = "no device", [42] = "system", [43] = "config", [44] = "protocol",
}
local kinds = { [0] = "control", [1] = "data" }
local roles = { [0] = "worker", [1] = "server" }

mercury.prefs.workers = Pref.uint("Workers of the job", 0,
  "Of a job of more than 256: no frame says it, and its partial sums may list who is missing")
mercury.prefs.port = Pref.uint("UDP port", 7470, "Frames on this port are Mercury's; 0: none")
mercury.prefs.check_payload =
  Pref.bool("Check the payload's CRC", true, "Sums each payload; slow with large captures")

local f = {
  magic = ProtoField.uint16("mercury.magic", "Magic", base.HEX),
  version = ProtoField.uint8("mercury.version", "Version"),
  type = ProtoField.uint8("mercury.type", "Type", base.DEC, types),
  flags = ProtoField.uint16("mercury.flags", "Flags", base.HEX),
  ack_now = ProtoField.bool("mercury.flags.ack_now", "Acknowledge at once", 16, nil, 0x0001),
  partial = ProtoField.bool("mercury.flags.partial", "Who contributed (RESULT), own part wanted (PUSH)", 16, nil, 0x0002),
  sealed = ProtoField.bool("mercury.flags.sealed", "Sealed", 16, nil, 0x0004),
  at_most = ProtoField.bool("mercury.flags.at_most", "Microseconds are a bound (ACK)", 16, nil, 0x0010),
  link_free = ProtoField.bool("mercury.flags.link_free", "Sender's link was idle", 16, nil, 0x0008),
  spread = ProtoField.bool("mercury.flags.spread", "Nobody hears at its source port", 16, nil, 0x0020),
  encrypted = ProtoField.bool("mercury.flags.encrypted", "Encrypted", 16, nil, 0x0040),
  seal = ProtoField.bytes("mercury.seal", "Seal"),
  ciphertext = ProtoField.bytes("mercury.ciphertext", "Encrypted payload"),
  payload_bytes = ProtoField.uint16("mercury.payload_bytes", "Payload bytes"),
  session = ProtoField.uint32("mercury.session", "Session", base.HEX),
  header_crc = ProtoField.uint32("mercury.header_crc", "Header CRC-32C", base.HEX),
  header_crc_ok = ProtoField.bool("mercury.header_crc.ok", "Header CRC-32C fits"),
  packet_number = ProtoField.uint64("mercury.packet_number", "Packet number"),
  echo = ProtoField.uint64("mercury.echo", "Echo of the HELLO's nonce", base.HEX),
  tag = ProtoField.uint64("mercury.tag", "Tag, if the frame is intact", base.HEX),
  payload_crc = ProtoField.uint32("mercury.payload_crc", "Payload CRC-32C", base.HEX),
  payload_crc_ok = ProtoField.bool("mercury.payload_crc.ok", "Payload CRC-32C fits"),
  reserved = ProtoField.uint32("mercury.reserved", "Reserved", base.HEX),
  round = ProtoField.uint32("mercury.round", "Round"),
  tensor = ProtoField.uint32("mercury.tensor", "Tensor"),
  chunk = ProtoField.uint32("mercury.chunk", "Chunk"),
  priority = ProtoField.uint16("mercury.priority", "Priority"),
  sender = ProtoField.uint16("mercury.sender", "Sender (worker's rank)"),
  contributors = ProtoField.uint16("mercury.contributors", "Contributors"),
  incarnation = ProtoField.uint32("mercury.incarnation", "Incarnation", base.HEX),
  first_ranks = ProtoField.uint64("mercury.contributors.first64", "Contributors, ranks 0 to 63",
    base.HEX),
  missing = ProtoField.uint16("mercury.contributors.missing", "Not a contributor (worker's rank)"),
  elements = ProtoField.bytes("mercury.elements", "Elements"),
  padding = ProtoField.bytes("mercury.padding", "Padding"),
  version_min = ProtoField.uint8("mercury.hello.version_min", "Lowest version"),
  version_max = ProtoField.uint8("mercury.hello.version_max", "Highest version"),
  chosen = ProtoField.uint8("mercury.hello_ack.version", "Version chosen"),
  kind = ProtoField.uint8("mercury.hello.kind", "Kind", base.DEC, kinds),
  role = ProtoField.uint8("mercury.hello.role", "Role", base.DEC, roles),
  features = ProtoField.uint32("mercury.hello.features", "Features", base.HEX),
  has_streams = ProtoField.bool("mercury.hello.features.streams", "Streams", 32, nil, 0x0001),
  has_seals = ProtoField.bool("mercury.hello.features.seals", "Seals", 32, nil, 0x0002),
  has_refusals = ProtoField.bool("mercury.hello.features.refusals", "Refusals", 32, nil, 0x0004),
  has_resets = ProtoField.bool("mercury.hello.features.resets", "Resets", 32, nil, 0x0008),
  has_parts = ProtoField.bool("mercury.hello.features.parts", "Parts", 32, nil, 0x0010),
  has_moves = ProtoField.bool("mercury.hello.features.moves", "Moves", 32, nil, 0x0020),
  has_source_ports = ProtoField.bool("mercury.hello.features.source_ports", "Source ports", 32, nil, 0x0040),
  can_encrypt = ProtoField.bool("mercury.hello.features.can_encrypt", "Can encrypt", 32, nil, 0x0080),
  asks_encryption = ProtoField.bool("mercury.hello.features.asks_encryption", "Asks for encryption", 32, nil, 0x0100),
  has_confirmation = ProtoField.bool("mercury.hello.features.confirmation", "Confirmation", 32, nil, 0x0200),
  own_session = ProtoField.uint32("mercury.hello.session", "Sender's session", base.HEX),
  rank = ProtoField.uint16("mercury.hello.rank", "Rank"),
  lane = ProtoField.uint16("mercury.hello.lane", "Lane"),
  max_payload = ProtoField.uint16("mercury.hello.max_udp_payload", "Largest UDP payload"),
  job = ProtoField.string("mercury.hello.job", "Job"),
  nonce = ProtoField.bytes("mercury.hello.nonce", "Nonce"),
  proof = ProtoField.bytes("mercury.hello.proof", "Proof"),
  confirmation = ProtoField.bytes("mercury.hello_ack.confirmation", "Confirmation of the handshake"),
  code = ProtoField.uint16("mercury.reason.code", "Code", base.DEC, codes),
  text = ProtoField.string("mercury.reason.text", "Text"),
  largest = ProtoField.uint64("mercury.ack.largest", "Largest packet number"),
  delay = ProtoField.uint32("mercury.ack.delay_us", "Delay (us)"),
  refused = ProtoField.uint8("mercury.ack.refused", "Ranges refused for now"),
  ranges = ProtoField.uint8("mercury.ack.ranges", "Ranges"),
  marked = ProtoField.uint16("mercury.ack.marked", "Frames marked so far"),
  grant = ProtoField.uint16("mercury.ack.grant", "Grant (128 bytes)"),
  idle_grant = ProtoField.uint16("mercury.ack.idle_grant", "Grant after a pause (128 bytes)"),
  first = ProtoField.uint64("mercury.ack.first", "First"),
  last = ProtoField.uint64("mercury.ack.last", "Last"),
  first_refused = ProtoField.uint64("mercury.ack.first_refused", "First refused"),
  reset_masked = ProtoField.uint64("mercury.reset.masked", "Token, masked", base.HEX),
  part_priority = ProtoField.uint16("mercury.part.priority", "Priority of the frame"),
  part_type = ProtoField.uint16("mercury.part.type", "Type of the frame", base.DEC, types),
  part_offset = ProtoField.uint16("mercury.part.offset", "Offset in the frame"),
  part_total = ProtoField.uint16("mercury.part.total", "Bytes of the frame"),
  path_data = ProtoField.uint64("mercury.path.data", "Challenge", base.HEX),
  first_source_port = ProtoField.uint16("mercury.source_ports.first", "First of its source ports"),
  source_ports = ProtoField.uint16("mercury.source_ports.count", "How many source ports"),
  part_bytes = ProtoField.bytes("mercury.part.bytes", "Bytes"),
  reset_token = ProtoField.uint64("mercury.reset.token", "Token", base.HEX),
  last_refused = ProtoField.uint64("mercury.ack.last_refused", "Last refused"),
  offset = ProtoField.uint64("mercury.control.offset", "Offset in the control stream"),
  bytes = ProtoField.bytes("mercury.control.bytes", "Bytes"),
  stream = ProtoField.uint32("mercury.stream", "Stream"),
  stream_end = ProtoField.bool("mercury.stream.end", "The stream ends behind these bytes", 16, nil,
    0x0001),
  stream_offset = ProtoField.uint64("mercury.stream.offset", "Offset in the stream"),
  stream_bytes = ProtoField.bytes("mercury.stream.bytes", "Bytes"),
  stream_limit = ProtoField.uint64("mercury.stream.limit", "Limit"),
  stream_sent = ProtoField.uint64("mercury.stream.sent", "Bytes ever sent"),
}
local fields = {}
for _, field in pairs(f) do fields[#fields + 1] = field end
mercury.fields = fields

local wrong = {
  header_crc = ProtoExpert.new("mercury.header_crc.wrong", "The header is damaged",
    expert.group.CHECKSUM, expert.severity.ERROR),
  payload_crc = ProtoExpert.new("mercury.payload_crc.wrong", "The payload is damaged",
    expert.group.CHECKSUM, expert.severity.ERROR),
  malformed = ProtoExpert.new("mercury.malformed", "The frame breaks the rules of its type",
    expert.group.MALFORMED, expert.severity.ERROR),
}
mercury.experts = { wrong.header_crc, wrong.payload_crc, wrong.malformed }

local crc_table = {}
for i = 0, 255 do
  local crc = i
  for _ = 1, 8 do
    local odd = bit.band(crc, 1) == 1
    crc = bit.rshift(crc, 1)
    if odd then crc = bit.bxor(crc, 0x82f63b78) end
  end
  crc_table[i] = crc
end

local function crc32c(text)
  local crc = 0xffffffff
  for i = 1, #text do
    local index = bit.band(bit.bxor(crc, text:byte(i)), 0xff)
    crc = bit.bxor(crc_table[index], bit.rshift(crc, 8))
  end
  return bit.bnot(crc) % 0x100000000
end

local function header_bytes(type)
  if type == kPush or type == kResult then return kChunkHeaderBytes end
  return kPlainHeaderBytes
end

-- What the header's CRC is combined with; 0 in a frame without a tag.
local function header_tag(tvb, bytes)
  local text = tvb(0, 12):raw() .. "\0\0\0\0" .. tvb(16, bytes - 16):raw()
  return bit.bxor(crc32c(text), tvb(12, 4):uint()) % 0x100000000
end

-- By receiver and session: the tags of the first frame, and where it is.
local sessions = {}
function mercury.init() sessions = {} end

local function expected_tag(tvb, pinfo, part, tag)
  local type = tvb(3, 1):uint()
  if type <= kRefuse or type == kReset then return 0 end
  local name = tostring(pinfo.dst) .. " " .. pinfo.dst_port .. " " .. tvb(8, 4):uint()
  local known = sessions[name] or {}
  sessions[name] = known
  known[part] = known[part] or tag
  return known[part]
end

local function features(tvb, tree)
  local item = tree:add(f.features, tvb)
  item:add(f.has_streams, tvb)
  item:add(f.has_seals, tvb)
  item:add(f.has_refusals, tvb)
  item:add(f.has_resets, tvb)
  item:add(f.has_parts, tvb)
  item:add(f.has_moves, tvb)
  item:add(f.has_source_ports, tvb)
  item:add(f.can_encrypt, tvb)
  item:add(f.asks_encryption, tvb)
  item:add(f.has_confirmation, tvb)
end

local function hex(range) return string.format("0x%08x", range:uint()) end

-- Each body returns what the Info column says, or nil when it is malformed.
local body = {}

body[1] = function(tvb, tree)
  if tvb:len() < 72 or tvb:len() ~= 72 + tvb(22, 2):uint() then return nil end
  tree:add(f.version_min, tvb(0, 1))
  tree:add(f.version_max, tvb(1, 1))
  tree:add(f.kind, tvb(2, 1))
  tree:add(f.role, tvb(3, 1))
  features(tvb(4, 4), tree)
  tree:add(f.own_session, tvb(8, 4))
  tree:add(f.rank, tvb(12, 2))
  tree:add(f.lane, tvb(14, 2))
  tree:add(f.incarnation, tvb(16, 4))
  tree:add(f.max_payload, tvb(20, 2))
  tree:add(f.nonce, tvb(24, 16))
  tree:add(f.proof, tvb(40, 32))
  if tvb:len() == 72 then return nil end
  tree:add(f.job, tvb(72))
  return string.format("%s session %s of %s %d, job %s", kinds[tvb(2, 1):uint()] or "?",
    hex(tvb(8, 4)), roles[tvb(3, 1):uint()] or "?", tvb(12, 2):uint(), tvb(72):string())
end

body[2] = function(tvb, tree)
  if tvb:len() ~= 68 and tvb:len() ~= 100 then return nil end
  tree:add(f.chosen, tvb(0, 1))
  features(tvb(4, 4), tree)
  tree:add(f.own_session, tvb(8, 4))
  tree:add(f.incarnation, tvb(12, 4))
  tree:add(f.max_payload, tvb(16, 2))
  tree:add(f.nonce, tvb(20, 16))
  tree:add(f.proof, tvb(36, 32))
  if tvb:len() > 68 then tree:add(f.confirmation, tvb(68, 32)) end
  return string.format("session %s, version %d", hex(tvb(8, 4)), tvb(0, 1):uint())
end

body[3] = function(tvb, tree)
  if tvb:len() < 8 or tvb:len() ~= 8 + tvb(6, 2):uint() then return nil end
  tree:add(f.own_session, tvb(0, 4))
  tree:add(f.code, tvb(4, 2))
  local text = ""
  if tvb:len() > 8 then
    tree:add(f.text, tvb(8))
    text = ": " .. tvb(8):string()
  end
  return (codes[tvb(4, 2):uint()] or "unknown code") .. text
end
body[4] = body[3]

-- Behind the ranges of an ACK: what of them was refused for now. Nil: malformed.
local function refused_ranges(tvb, tree, above)
  local said = {}
  for at = 0, tvb:len() - 8, 8 do
    local taken = UInt64(tvb(at, 4):uint())
    local length_minus_1 = UInt64(tvb(at + 4, 4):uint())
    if taken > above or length_minus_1 > above - taken then return nil end
    local last = above - taken
    local first = last - length_minus_1
    local text = tostring(first) .. " to " .. tostring(last)
    local item = tree:add(tvb(at, 8), "Refused packets " .. text)
    item:add(f.first_refused, tvb(at, 8), first)
    item:add(f.last_refused, tvb(at, 8), last)
    said[#said + 1] = text
    if at + 8 < tvb:len() and first == UInt64(0) then return nil end
    above = first - UInt64(1)
  end
  return "; refused " .. table.concat(said, ", ", 1, math.min(#said, 4)) .. (#said > 4 and ", ..." or "")
end

body[5] = function(tvb, tree)
  if tvb:len() < 24 then return nil end
  local ranges, refused = tvb(13, 1):uint(), tvb(12, 1):uint()
  if tvb:len() ~= 16 + 8 * (ranges + refused) or ranges == 0 then return nil end
  tree:add(f.largest, tvb(0, 8))
  tree:add(f.delay, tvb(8, 4))
  tree:add(f.refused, tvb(12, 1))
  tree:add(f.ranges, tvb(13, 1))
  tree:add(f.marked, tvb(14, 2))
  local last = tvb(0, 8):uint64()
  local said = {}
  for i = 0, ranges - 1 do
    local range = tvb(16 + 8 * i, 8)
    local length_minus_1 = UInt64(tvb(16 + 8 * i, 4):uint())
    if length_minus_1 > last then return nil end
    local first = last - length_minus_1
    local text = tostring(first) .. " to " .. tostring(last)
    local item = tree:add(range, "Packets " .. text)
    item:add(f.first, range, first)
    item:add(f.last, range, last)
    said[#said + 1] = text
    local down = UInt64(tvb(20 + 8 * i, 4):uint()) + UInt64(2)
    if i + 1 < ranges and down > first then return nil end
    last = first - down
  end
  local text = table.concat(said, ", ", 1, math.min(#said, 4)) .. (#said > 4 and ", ..." or "")
  if refused == 0 then return text end
  local rest = refused_ranges(tvb(16 + 8 * ranges):tvb(), tree, tvb(0, 8):uint64())
  return rest and text .. rest
end

body[6] = function(tvb, tree)
  if tvb:len() == 0 then return "" end
  tree:add(f.padding, tvb())
  return "padded to " .. (kPlainHeaderBytes + tvb:len())
end

body[7] = function(tvb, tree)
  if tvb:len() <= 8 then return nil end
  tree:add(f.offset, tvb(0, 8))
  tree:add(f.bytes, tvb(8))
  return string.format("offset %s, %d bytes", tostring(tvb(0, 8):uint64()), tvb:len() - 8)
end

body[8] = function(tvb, tree)
  if tvb:len() == 0 then return "without elements" end
  tree:add(f.elements, tvb())
  return ""
end

body[10] = function(tvb, tree)
  if tvb:len() < 16 then return nil end
  tree:add(f.stream, tvb(0, 4))
  tree:add(f.stream_end, tvb(4, 2))
  tree:add(f.stream_offset, tvb(8, 8))
  local ends = tvb(4, 2):uint() % 2 == 1
  if tvb:len() > 16 then tree:add(f.stream_bytes, tvb(16)) elseif not ends then return nil end
  return string.format("stream %d offset %s, %d bytes%s", tvb(0, 4):uint(),
    tostring(tvb(8, 8):uint64()), tvb:len() - 16, ends and ", end" or "")
end

body[11] = function(tvb, tree)
  if tvb:len() ~= 16 then return nil end
  tree:add(f.stream, tvb(0, 4))
  tree:add(f.stream_limit, tvb(8, 8))
  local limit = tostring(tvb(8, 8):uint64())
  if tvb(0, 4):uint() == 0 then return limit .. " streams" end
  return string.format("stream %d to offset %s", tvb(0, 4):uint(), limit)
end

body[12] = function(tvb, tree)
  if tvb:len() ~= 16 then return nil end
  tree:add(f.stream, tvb(0, 4))
  tree:add(f.code, tvb(4, 2))
  tree:add(f.stream_sent, tvb(8, 8))
  return string.format("stream %d: %s", tvb(0, 4):uint(), codes[tvb(4, 2):uint()] or "unknown code")
end

body[13] = function(tvb, tree)
  if tvb:len() ~= 8 then return nil end
  tree:add(f.reset_masked, tvb(0, 8))
  return ""
end

body[14] = function(tvb) return tvb:len() == 0 and "" or nil end

body[15] = function(tvb, tree)
  if tvb:len() <= 4 then return nil end
  tree:add(f.part_offset, tvb(0, 2))
  tree:add(f.part_total, tvb(2, 2))
  tree:add(f.part_bytes, tvb(4))
  return string.format("%d of %d bytes", tvb:len() - 4, tvb(2, 2):uint())
end

body[16] = function(tvb, tree)
  if tvb:len() ~= 8 then return nil end
  tree:add(f.path_data, tvb(0, 8))
  return ""
end

body[17] = body[16]

body[18] = function(tvb, tree)
  if tvb:len() ~= 4 then return nil end
  tree:add(f.first_source_port, tvb(0, 2))
  tree:add(f.source_ports, tvb(2, 2))
  local first, count = tvb(0, 2):uint(), tvb(2, 2):uint()
  return string.format("%d to %d", first, first + count - 1)
end

-- Of jobs of more than 256 workers; 0: a bitmap. As contributor_bytes of aggregator/frame has it.
local function list_bytes(contributors)
  local workers = mercury.prefs.workers
  if workers <= 256 or contributors >= workers then return 0 end
  local list = math.floor((workers - contributors + 3) / 4) * 8
  return list < math.floor((workers + 63) / 64) * 8 and list or 0
end

local function partial_body(tvb, tree, contributors)
  local list = list_bytes(contributors)
  if tvb:len() < math.max(list, 8) then return nil end
  if list > 0 then
    for at = 0, list - 2, 2 do
      if tvb(at, 2):uint() ~= 0xffff then tree:add(f.missing, tvb(at, 2)) end
    end
    if tvb:len() > list then tree:add(f.elements, tvb(list)) end
    return ""
  end
  tree:add(f.first_ranks, tvb(0, 8))
  if tvb:len() > 8 then
    tree:add(f.elements, tvb(8)):append_text(" (behind further words of the bitmap, if any)")
  end
  return ""
end

local function chunk_header(tvb, tree, type)
  tree:add(f.round, tvb(24, 4))
  tree:add(f.tensor, tvb(28, 4))
  tree:add(f.chunk, tvb(32, 4))
  tree:add(f.priority, tvb(36, 2))
  tree:add(type == kPush and f.sender or f.contributors, tvb(38, 2))
  tree:add(f.incarnation, tvb(40, 4))
  return string.format("tensor %d chunk %d round %d priority %d %s %d", tvb(28, 4):uint(),
    tvb(32, 4):uint(), tvb(24, 4):uint(), tvb(36, 2):uint(),
    type == kPush and "from worker" or "contributors", tvb(38, 2):uint())
end

-- Parts are of what is encrypted already.
local function is_encrypted(tvb)
  local type = tvb(3, 1):uint()
  return type > kRefuse and type ~= kPart and bit.band(tvb(4, 2):uint(), kEncryptedFlag) ~= 0
end

-- What stands before the payload: the header, and the seal if the frame says that it has one.
local function head_bytes(tvb)
  local type = tvb(3, 1):uint()
  local sealed = type > kRefuse and bit.band(tvb(4, 2):uint(), kSealedFlag) ~= 0
  return header_bytes(type) + (sealed and kSealBytes or 0)
end

-- `head` and `bytes`: of the payload.
local function payload_crc(tvb, pinfo, tree, at, head)
  local item = tree:add(f.payload_crc, tvb(at, 4))
  local bytes = tvb:reported_len() - head
  if not mercury.prefs.check_payload or bytes < 0 or tvb:captured_len() ~= head + bytes or is_encrypted(tvb) then
    return true
  end
  local text = bytes > 0 and tvb(head):raw() or ""
  local tag = bit.bxor(crc32c(text), tvb(at, 4):uint()) % 0x100000000
  local fits = tag == expected_tag(tvb, pinfo, "payload", tag)
  item:add(f.payload_crc_ok, fits):set_generated()
  if not fits then item:add_proto_expert_info(wrong.payload_crc) end
  return fits, tag
end

local function common_header(tvb, pinfo, tree, head)
  tree:add(f.magic, tvb(0, 2))
  tree:add(f.version, tvb(2, 1))
  tree:add(f.type, tvb(3, 1))
  local flags = tree:add(f.flags, tvb(4, 2))
  flags:add(f.ack_now, tvb(4, 2))
  flags:add(f.partial, tvb(4, 2))
  flags:add(f.sealed, tvb(4, 2))
  flags:add(f.link_free, tvb(4, 2))
  flags:add(f.at_most, tvb(4, 2))
  flags:add(f.spread, tvb(4, 2))
  flags:add(f.encrypted, tvb(4, 2))
  tree:add(f.payload_bytes, tvb(6, 2))
  tree:add(f.session, tvb(8, 4))
  local tag = header_tag(tvb, head)
  local fits = tag == expected_tag(tvb, pinfo, "header", tag)
  local item = tree:add(f.header_crc, tvb(12, 4))
  item:add(f.header_crc_ok, fits):set_generated()
  if not fits then item:add_proto_expert_info(wrong.header_crc) end
  local type = tvb(3, 1):uint()
  local word = type > kHello and type <= kRefuse and f.echo or f.packet_number
  tree:add(type == kReset and f.reset_token or word, tvb(16, 8))
  return fits, tag
end

local function has_magic(tvb)
  return tvb:captured_len() >= kPlainHeaderBytes and tvb(0, 2):uint() == 0x4d55
end

local function is_known(tvb)
  local type = tvb(3, 1):uint()
  return types[type] ~= nil and tvb:captured_len() >= header_bytes(type) and
    tvb(2, 1):uint() == (type <= kRefuse and kHandshakeVersion or kVersion)
end

function mercury.dissector(tvb, pinfo, root)
  if not has_magic(tvb) then return 0 end
  pinfo.cols.protocol = "Mercury"
  local tree = root:add(mercury, tvb())
  if not is_known(tvb) then
    tree:add(f.magic, tvb(0, 2))
    tree:add(f.version, tvb(2, 1))
    tree:add(f.type, tvb(3, 1))
    tree:add_proto_expert_info(wrong.malformed, "Unknown version or type, or the header is cut")
    pinfo.cols.info = "Mercury: unknown version or type, or cut header"
    return tvb:captured_len()
  end
  local type = tvb(3, 1):uint()
  local head = header_bytes(type)
  tree:append_text(", " .. types[type])
  local header_fits, high = common_header(tvb, pinfo, tree, head)
  local info = types[type]
  if head == kChunkHeaderBytes then info = info .. " " .. chunk_header(tvb, tree, type) end
  local at = head == kChunkHeaderBytes and 44 or 24
  local body_at = head_bytes(tvb)
  local payload_fits, low = payload_crc(tvb, pinfo, tree, at, body_at)
  if type > kRefuse and type ~= kReset and low then tree:add(f.tag, UInt64(low, high)):set_generated() end
  local intact = header_fits and payload_fits
  if head == kPlainHeaderBytes then
    if type == kAck then
      tree:add(f.grant, tvb(28, 2))
      tree:add(f.idle_grant, tvb(30, 2))
    elseif type == kPart then
      tree:add(f.part_priority, tvb(28, 2))
      tree:add(f.part_type, tvb(30, 2))
    else
      tree:add(f.reserved, tvb(28, 4))
    end
  end
  if body_at > head and tvb:captured_len() >= body_at then tree:add(f.seal, tvb(head, kSealBytes)) end
  local text
  if tvb:reported_len() ~= head + tvb(6, 2):uint() or tvb:reported_len() < body_at then
    text = nil
  elseif tvb:captured_len() < tvb:reported_len() then
    text = "(payload not captured in full)"
  elseif is_encrypted(tvb) then
    if tvb:captured_len() > body_at then tree:add(f.ciphertext, tvb(body_at)) end
    text = "(encrypted)"
  else
    local decode = body[type]
    if type == kResult then
      decode = bit.band(tvb(4, 2):uint(), 2) ~= 0 and partial_body or body[kPush]
    end
    text = decode(tvb(body_at):tvb(), tree, type == kResult and tvb(38, 2):uint())
  end
  if text == nil then
    tree:add_proto_expert_info(wrong.malformed)
    text = "[malformed]"
  end
  if text ~= "" then info = info .. " " .. text end
  if not intact then info = info .. " [damaged]" end
  pinfo.cols.info = info .. " [packet " .. tostring(tvb(16, 8):uint64()) .. "]"
  return tvb:captured_len()
end

-- On other ports: only what nobody else could have sent.
local function heuristic(tvb, pinfo, root)
  if not has_magic(tvb) or not is_known(tvb) then return false end
  local head = header_bytes(tvb(3, 1):uint())
  if tvb:reported_len() ~= head + tvb(6, 2):uint() then return false end
  if tvb(3, 1):uint() <= kRefuse and header_tag(tvb, head) ~= 0 then return false end
  mercury.dissector(tvb, pinfo, root)
  return true
end

mercury:register_heuristic("udp", heuristic)

local udp_ports = DissectorTable.get("udp.port")
local current_port = 0
local function listen()
  if current_port ~= 0 then udp_ports:remove(current_port, mercury) end
  current_port = mercury.prefs.port
  if current_port ~= 0 then udp_ports:add(current_port, mercury) end
end
function mercury.prefs_changed() listen() end
listen()
