"""Mercury's frames as docs/protocol.md describes them, written without any of Mercury's code."""
import hashlib
import struct

HELLO, HELLO_ACK, REFUSE, CLOSE, ACK, PING, CONTROL, PUSH, RESULT = range(1, 10)
RESET_TOKEN, RESET = 13, 14
CONTROL_SESSION, DATA_SESSION = range(2)
STREAMS = 1  # a feature
MAGIC = 0x4D55
VERSION = 2


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def version_of(kind):
    """Handshakes are of version 1 in all versions."""
    return 1 if HELLO <= kind <= REFUSE else VERSION


def frame(kind, payload=b"", session=0, number=0, version=None, magic=MAGIC, length=None, payload_crc=None, chunk=None,
          tag=(0, 0)):
    """A whole frame; `number` of HELLO_ACK and REFUSE is the HELLO's echo; `chunk` is (round, tensor, chunk, priority, sender, incarnation) of PUSH and RESULT."""
    crc = (crc32c(payload) if payload_crc is None else payload_crc) ^ tag[1]
    rest = struct.pack(">IIIHHII", *chunk, crc) if chunk else struct.pack(">II", crc, 0)
    length = len(payload) if length is None else length
    before = struct.pack(">HBBHHI", magic, version_of(kind) if version is None else version, kind, 0, length, session)
    after = struct.pack(">Q", number) + rest
    return before + struct.pack(">I", crc32c(before + bytes(4) + after) ^ tag[0]) + after + payload


def job_key(name, secret=""):
    text = b"mercury job key" + bytes([len(name)]) + name.encode() + secret.encode()
    return hashlib.blake2b(text, digest_size=32).digest()


def hello(job, session, versions=(VERSION, VERSION), secret="", rank=0, nonce=bytes(16), incarnation=7, kind=CONTROL_SESSION, features=0):
    """A worker's HELLO, with the proof that the job's secret asks for."""
    def body(number, payload_bytes, proof):
        return struct.pack(">BBBBIIHHIHH", *versions, kind, 0, features, number, rank, 0, incarnation, payload_bytes,
                           len(job)) + nonce + proof + job.encode()
    proof = hashlib.blake2b(b"mercury hello" + body(0, 0, bytes(32)), digest_size=32, key=job_key(job, secret)).digest()
    return body(session, 1472, proof)


def hello_ack(session, version=VERSION, nonce=bytes(16)):
    return struct.pack(">BBBBIIIHH", version, 0, 0, 0, 0, session, 7, 1472, 0) + nonce + bytes(32)


def echo_of(nonce):
    """What answers to the HELLO with this nonce show in place of a packet number."""
    return int.from_bytes(nonce[8:], "big")


def frame_tag(key, asked, answered):
    """A session's tag, from the job's key and the nonces of HELLO and HELLO_ACK."""
    text = b"mercury frame tag" + asked + answered
    return struct.unpack_from("<II", hashlib.blake2b(text, digest_size=32, key=key).digest())


def tag_of(data):
    """The tag that an intact chunk frame shows to whoever reads it."""
    header = data[:12] + bytes(4) + data[16:48]
    return (crc32c(header) ^ struct.unpack_from(">I", data, 12)[0],
            crc32c(data[48:]) ^ struct.unpack_from(">I", data, 44)[0])


def reason(session, code, text):
    return struct.pack(">IHH", session, code, len(text)) + text.encode()


def parse(data, tag=(0, 0)):
    """(type, session, payload) of a plain frame whose checksums are right; `tag` is its session's, if it has one."""
    magic, version, kind, _, length, session, header_crc = struct.unpack_from(">HBBHHII", data)
    header = data[:12] + bytes(4) + data[16:32]
    payload = data[32:]
    if kind <= REFUSE:
        tag = (0, 0)
    assert magic == MAGIC and version == version_of(kind) and header_crc == crc32c(header) ^ tag[0], data.hex()
    assert length == len(payload) and struct.unpack_from(">I", data, 24)[0] == crc32c(payload) ^ tag[1], data.hex()
    return kind, session, payload


def parse_reason(payload):
    """(code, text) of REFUSE and CLOSE."""
    _, code, length = struct.unpack_from(">IHH", payload)
    assert len(payload) == 8 + length
    return code, payload[8:].decode()
