#!/usr/bin/env python3
"""Shows the golden frames, intact and damaged, to tshark with tools/wireshark/mercury.lua and
compares the values that it displays. Usage: dissector_test.py SOURCE_ROOT"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = sys.argv.pop(1)
PORT = 7470
LINKTYPE_RAW = 101  # IPv4 or IPv6 without a link header
PCAP_SNAPLEN = 65535


def golden_frames():
    """Name to bytes, from golden_frames.h."""
    with open(os.path.join(ROOT, 'tests/transport/wire/golden_frames.h'), encoding='ascii') as file:
        text = file.read()
    frames = {}
    for name, strings in re.findall(r'\{"(\w+)",\s*((?:"[0-9a-f ]*"\s*)+)\}', text):
        frames[name] = bytes.fromhex(''.join(re.findall(r'"([^"]*)"', strings)))
    return frames


def internet_sum(data):
    data += b'\0' * (len(data) % 2)
    total = sum(struct.unpack(f'>{len(data) // 2}H', data))
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def packet(payload, family, port):
    size = 8 + len(payload)
    if family == 4:
        addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
        head = struct.pack('>BBHHHBBH', 0x45, 0, 20 + size, 0, 0, 64, 17, 0) + addresses
        head = head[:10] + struct.pack('>H', internet_sum(head)) + head[12:]
        pseudo = addresses + struct.pack('>BBH', 0, 17, size)
    else:
        addresses = bytes.fromhex('fd000000000000000000000000000001fd000000000000000000000000000002')
        head = struct.pack('>IHBB', 0x60000000, size, 17, 64) + addresses
        pseudo = addresses + struct.pack('>II', size, 17)
    udp = struct.pack('>HHHH', 40000, port, size, 0)
    check = internet_sum(pseudo + udp + payload) or 0xffff
    return head + udp[:6] + struct.pack('>H', check) + payload


def tshark(packets, *arguments):
    """The layers of each packet, as `tshark -T json` names them. Rows: (bytes, bytes captured)."""
    with tempfile.TemporaryDirectory() as folder:
        capture = os.path.join(folder, 'golden.pcap')
        with open(capture, 'wb') as file:
            file.write(struct.pack('<IHHiIII', 0xa1b2c3d4, 2, 4, 0, 0, PCAP_SNAPLEN, LINKTYPE_RAW))
            for i, (data, captured) in enumerate(packets):
                file.write(struct.pack('<IIII', i, 0, captured, len(data)) + data[:captured])
        done = subprocess.run(
            ['tshark', '-X', f'lua_script:{ROOT}/tools/wireshark/mercury.lua', '-r', capture, '-n',
             '-T', 'json', '--no-duplicate-keys', '-o', 'udp.check_checksum:TRUE', *arguments],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, 'WIRESHARK_CONFIG_DIR': folder, 'HOME': folder}, check=False)
    if done.returncode != 0 or 'Lua' in done.stderr:
        raise AssertionError(f'tshark: {done.returncode}\n{done.stderr}')
    return [row['_source']['layers'] for row in json.loads(done.stdout)]


def values(layer):
    """All fields below `layer`, by name; a field shown several times gives a list."""
    found = {}

    def walk(key, node):
        if isinstance(node, dict):
            for name, value in node.items():
                walk(name, value)
        elif isinstance(node, list):
            for item in node:
                walk(key, item)
        else:
            found.setdefault(key, []).append(node)

    walk('', layer)
    return {key: items[0] if len(items) == 1 else items for key, items in found.items()}


PROOF = ':'.join(f'{i:02x}' for i in range(0x40, 0x60))
CONFIRMATION = ':'.join(f'{i:02x}' for i in range(0x60, 0x80))
NONCE = ':'.join(f'{i:02x}' for i in range(0x10, 0x20))
ECHO = '0x08090a0b0c0d0e0f'
EXPECTED = {
    'hello': {'type': '1', 'session': '0x00000000', 'packet_number': '0', 'payload_bytes': '79',
              'hello.version_min': '1', 'hello.version_max': '3', 'hello.kind': '1',
              'hello.role': '0', 'hello.session': '0x00c0ffee', 'hello.rank': '2',
              'hello.lane': '1', 'incarnation': '0x5eed0001', 'hello.max_udp_payload': '8972',
              'hello.job': 'mnist-1', 'hello.proof': PROOF},
    'hello_ack': {'type': '2', 'session': '0x00c0ffee', 'hello_ack.version': '1', 'echo': ECHO,
                  'hello.session': '0x0badf00d', 'hello.max_udp_payload': '1472',
                  'incarnation': '0x5eed0002', 'hello.nonce': NONCE, 'hello.proof': PROOF},
    'refuse': {'type': '3', 'echo': ECHO, 'hello.session': '0x00c0ffee', 'reason.code': '21',
               'reason.text': 'wrong secret for job mnist-1'},
    'close': {'type': '4', 'session': '0x0badf00d', 'packet_number': '9', 'reason.code': '34',
              'reason.text': 'program ended'},
    'ack': {'type': '5', 'ack.largest': '1000', 'ack.delay_us': '250', 'ack.ranges': '3',
            'ack.marked': '7', 'ack.grant': '586', 'ack.idle_grant': '73',
            'ack.first': ['995', '990', '100'], 'ack.last': ['1000', '990', '900']},
    'ack_of_refused': {'type': '5', 'ack.largest': '1000', 'ack.ranges': '3', 'ack.refused': '2',
                       'ack.first': ['995', '990', '100'], 'ack.last': ['1000', '990', '900'],
                       'ack.first_refused': ['998', '500'], 'ack.last_refused': ['999', '500']},
    'reset_token': {'type': '13', 'packet_number': '18', 'reset.masked': '0x0123456789abcdef'},
    'reset': {'type': '14', 'session': '0x00c0ffee', 'reset.token': '0xfedcba9876543210'},
    'part': {'type': '15', 'packet_number': '72', 'part.priority': '42', 'part.type': '8',
             'part.offset': '1188', 'part.total': '8972', 'part.bytes': '70:61:72:74'},
    'path_challenge': {'type': '16', 'packet_number': '73', 'path.data': '0x0123456789abcdef'},
    'source_ports': {'type': '18', 'packet_number': '75', 'source_ports.first': '7478', 'source_ports.count': '3'},
    'path_response': {'type': '17', 'packet_number': '74', 'path.data': '0x0123456789abcdef'},
    'ping': {'type': '6', 'flags.ack_now': '1', 'flags.partial': '0', 'payload_bytes': '0'},
    'mtu_probe': {'type': '6', 'payload_bytes': '24', 'padding': ':'.join(['00'] * 24)},
    'control': {'type': '7', 'control.offset': '4294967296',
                'control.bytes': '00:00:00:05:68:65:6c:6c:6f'},
    'push': {'type': '8', 'flags.ack_now': '1', 'flags.link_free': '0', 'flags.at_most': '0', 'packet_number': '72623859790382856', 'round': '6',
             'tensor': '17', 'chunk': '3', 'priority': '42', 'sender': '2',
             'incarnation': '0x5eed0001',
             'elements': '00:00:80:3f:00:00:00:c0:00:00:00:3f:00:00:50:40'},
    'push_of_nothing': {'type': '8', 'payload_bytes': '0', 'round': '6', 'tensor': '17', 'chunk': '4', 'sender': '2',
                        'elements': None},
    'result': {'type': '9', 'flags.partial': '0', 'contributors': '4', 'chunk': '3',
               'elements': '00:00:80:40:00:00:00:c1:00:00:00:40:00:00:50:41'},
    'partial_result': {'type': '9', 'flags.partial': '1', 'contributors': '3', 'chunk': '4',
                       'contributors.first64': '0x000000000000000b',
                       'elements': '00:00:40:40:00:00:c0:c0'},
    'tagged_push': {'type': '8', 'session': '0x0badf00e', 'tag': '0x7a61675f54414721',
                    'chunk': '3', 'elements': '00:00:80:3f:00:00:00:c0:00:00:00:3f:00:00:50:40'},
    'refuse_with_token': {'type': '3', 'echo': ECHO, 'reason.code': '13', 'reason.text': '0123456789abcdef'},
    'hello_with_token': {'type': '1', 'packet_number': '81985529216486895'},
    'hello_ack_of_seals': {'type': '2', 'hello.features': '0x00000002', 'hello.features.seals': '1',
                           'hello.features.refusals': '0', 'hello.features.resets': '0',
                           'hello.features.parts': '0',
                           'hello.features.moves': '0',
                           'hello.features.source_ports': '0', 'hello.features.can_encrypt': '0',
                           'hello.features.asks_encryption': '0', 'hello.features.confirmation': '0',
                           'hello.proof': PROOF, 'hello_ack.confirmation': CONFIRMATION},
    'sealed_push': {'type': '8', 'flags.sealed': '1', 'payload_bytes': '32', 'tag': '0x7a61675f54414721', 'tensor': '17',
                    'seal': 'c1:e4:ec:14:54:ca:5b:85:17:2e:d3:1e:c3:09:4e:6d',
                    'elements': '00:00:80:3f:00:00:00:c0:00:00:00:3f:00:00:50:40'},
    'encrypted_push': {'type': '8', 'flags.sealed': '1', 'flags.encrypted': '1', 'payload_bytes': '32', 'tensor': '17', 'tag': None,
                       'seal': 'cc:bd:09:f2:a4:78:ce:7c:58:19:9d:9a:eb:7e:01:33', 'elements': None, 'payload_crc.ok': None,
                       'ciphertext': '18:2e:0e:56:06:a0:12:f2:9e:43:4a:8d:d9:b1:bb:40'},
    'encrypted_control': {'type': '7', 'flags.sealed': '1', 'flags.encrypted': '1', 'control.offset': None,
                          'payload_crc.ok': None, 'seal': 'e6:32:75:94:68:56:0a:75:cf:08:9c:87:dd:1e:05:e0',
                          'ciphertext': '35:12:70:9a:2b:d2:78:a6:7c:61:15:eb:ba:27:a8:63:41'},
    'sealed_part': {'type': '15', 'flags.sealed': '1', 'packet_number': '72', 'part.offset': '1188', 'part.total': '8972',
                    'seal': 'bc:85:56:c4:60:a8:b5:72:9e:64:89:7c:79:0b:77:ad', 'part.bytes': '70:61:72:74'},
    'sealed_ping': {'type': '6', 'flags.sealed': '1', 'payload_bytes': '16', 'padding': None,
                    'seal': '01:15:8c:c8:c8:0a:61:74:fe:63:e5:6d:fb:00:fe:99'},
    'sealed_control': {'type': '7', 'flags.ack_now': '0', 'flags.sealed': '1', 'control.offset': '4294967296',
                       'seal': '45:c9:d2:98:e9:8e:f0:94:e2:6e:e3:a9:47:23:f7:54',
                       'control.bytes': '00:00:00:05:68:65:6c:6c:6f'},
    'sealed_stream_end': {'type': '10', 'flags.sealed': '1', 'stream': '5', 'stream.end': '1',
                          'seal': '02:1b:12:bf:43:c0:a5:46:86:39:89:bc:06:5f:6b:a5', 'stream.bytes': '68:69'},
    'sealed_reset_token': {'type': '13', 'flags.sealed': '1', 'reset.masked': '0x0123456789abcdef',
                           'seal': 'e3:d2:0a:4d:12:18:35:c1:0c:97:57:c4:41:28:58:1c'},
    'stream': {'type': '10', 'flags.sealed': '0', 'seal': None, 'packet_number': '12', 'stream': '5', 'stream.end': '0',
               'stream.offset': '8589934608', 'stream.bytes': '68:69'},
    'stream_end': {'type': '10', 'flags.ack_now': '1', 'stream': '5', 'stream.end': '1',
                   'stream.offset': '8589934608', 'stream.bytes': '68:69'},
    'stream_credit': {'type': '11', 'stream': '5', 'stream.limit': '8590196752'},
    'stream_reset': {'type': '12', 'stream': '5', 'reason.code': '31', 'stream.sent': '8589934610'},
}


class Dissector(unittest.TestCase):
    frames = golden_frames()

    def check_frames(self, family, port):
        names = list(self.frames)
        packets = [packet(self.frames[name], family, port) for name in names]
        shown = tshark([(data, len(data)) for data in packets])
        self.assertEqual(len(shown), len(names))
        for name, layers in zip(names, shown):
            with self.subTest(frame=name):
                self.assertIn('mercury', layers)
                fields = values(layers['mercury'])
                expected = {'magic': '0x4d55', 'version': '1' if self.frames[name][3] <= 3 else '2', 'header_crc.ok': '1',
                            'payload_crc.ok': '1', **EXPECTED[name]}
                actual = {key: fields.get(f'mercury.{key}') for key in expected}
                self.assertEqual(actual, expected)
                self.assertNotIn('_ws.expert', fields)
                self.assertNotIn('mercury.malformed', fields)
                self.assertEqual(layers['udp']['udp.checksum.status'], '1')

    def test_every_golden_frame_has_an_expectation(self):
        self.assertEqual(set(self.frames), set(EXPECTED))

    def test_every_reason_code_has_a_text(self):
        with open(os.path.join(ROOT, 'transport/base/result.h'), encoding='ascii') as file:
            codes = re.search(r'enum class Errc[^{]*\{(.*?)\};', file.read(), re.S).group(1)
        with open(os.path.join(ROOT, 'tools/wireshark/mercury.lua'), encoding='ascii') as file:
            texts = re.search(r'local codes = \{(.*?)\n\}', file.read(), re.S).group(1)
        self.assertEqual(re.findall(r'\[(\d+)\] = "', texts), re.findall(r'= (\d+),', codes))

    def test_frames_over_ipv4(self):
        self.check_frames(4, PORT)

    def test_frames_over_ipv6(self):
        self.check_frames(6, PORT)

    def test_frames_on_another_port_are_known_by_their_header(self):
        self.check_frames(6, 50123)

    def test_damage_is_named_on_the_port_and_not_claimed_elsewhere(self):
        header = bytearray(self.frames['push'])
        header[24] ^= 1
        payload = bytearray(self.frames['push'])
        payload[-1] ^= 1
        refusal = bytearray(self.frames['refuse'])
        refusal[24] ^= 1
        rows = [packet(self.frames['push'], 4, PORT), packet(bytes(header), 4, PORT),
                packet(bytes(payload), 4, PORT), packet(bytes(refusal), 4, PORT),
                packet(bytes(refusal), 4, 50123)]
        _, *damaged, elsewhere = tshark([(data, len(data)) for data in rows])
        first, second, third = [values(layers['mercury']) for layers in damaged]
        self.assertEqual(first['mercury.header_crc.ok'], '0')
        self.assertEqual(second['mercury.header_crc.ok'], '1')
        self.assertEqual(second['mercury.payload_crc.ok'], '0')
        self.assertEqual(third['mercury.header_crc.ok'], '0')
        self.assertNotIn('mercury', elsewhere)

    def test_a_frame_with_another_tag_than_its_session_is_named(self):
        forged = self.frames['tagged_push'][:8] + self.frames['push'][8:12] + \
            self.frames['tagged_push'][12:]
        rows = [packet(self.frames[name], 4, PORT) for name in ('push', 'tagged_push')]
        shown = [values(layers['mercury']) for layers in
                 tshark([(data, len(data)) for data in [*rows, packet(forged, 4, PORT)]])]
        self.assertEqual([fields['mercury.header_crc.ok'] for fields in shown], ['1', '1', '0'])

    def test_each_flag_is_shown_alone(self):
        with open(os.path.join(ROOT, 'transport/wire/header.h'), encoding='ascii') as file:
            flags = re.findall(r'^ *kFlag(\w+) = (.*?),', file.read(), re.M)
        bits = {re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower(): int(bit) for name, bit in flags}
        bits['partial'] = bits.pop('service')  # in an exchange of gradients
        push = self.frames['push']
        shown = tshark([(data, len(data)) for data in
                        (packet(push[:4] + struct.pack('>H', bit) + push[6:], 4, PORT) for bit in bits.values())])
        for name, layers in zip(bits, shown, strict=True):
            fields = values(layers['mercury'])
            self.assertEqual({other for other in bits if fields[f'mercury.flags.{other}'] == '1'}, {name})

    def test_lengths_that_do_not_fit_are_malformed(self):
        rows = []
        for name in self.frames:
            rows.append(packet(self.frames[name] + b'x', 4, PORT))
        for layers in tshark([(data, len(data)) for data in rows]):
            self.assertIn('mercury.malformed', values(layers['mercury']))

    def test_every_cut_is_survived(self):
        rows = []
        for frame in self.frames.values():
            rows += [packet(frame[:size], 4, PORT) for size in range(len(frame))]
        for data, layers in zip(rows, tshark([(data, len(data)) for data in rows])):
            if len(data) >= 28 + 32:
                self.assertIn('mercury.malformed', values(layers['mercury']))
            else:
                self.assertNotIn('mercury', layers)

    def test_a_frame_that_says_it_is_sealed_and_is_too_short_is_malformed(self):
        frame = self.frames['sealed_ping']
        for size in range(32, 48):
            short = frame[:6] + struct.pack('>H', size - 32) + frame[8:size]
            layers, = tshark([(data := packet(short, 4, PORT), len(data))])
            self.assertIn('mercury.malformed', values(layers['mercury']), size)

    def test_a_capture_of_headers_alone_shows_them(self):
        data = packet(self.frames['push'], 4, PORT)
        layers, = tshark([(data, 28 + 48)])
        fields = values(layers['mercury'])
        self.assertEqual(fields['mercury.tensor'], '17')
        self.assertNotIn('mercury.payload_crc.ok', fields)
        self.assertNotIn('mercury.malformed', fields)

    def test_the_port_is_a_preference(self):
        data = packet(self.frames['ping'][:2] + b'\x09' + self.frames['ping'][3:], 4, 9999)
        before, = tshark([(data, len(data))])
        self.assertNotIn('mercury', before)
        after, = tshark([(data, len(data))], '-o', 'mercury.port:9999')
        self.assertEqual(values(after['mercury'])['mercury.version'], '9')

    def test_a_large_jobs_list_of_who_is_missing_is_shown(self):
        frame = bytearray(self.frames['partial_result'])
        frame[38:40] = (998).to_bytes(2, 'big')
        frame[48:56] = bytes.fromhex('00010203ffffffff')
        data = packet(bytes(frame), 4, PORT)  # with wrong checksums, which it says
        layers, = tshark([(data, len(data))], '-o', 'mercury.workers:1000')
        fields = values(layers['mercury'])
        self.assertEqual(fields['mercury.contributors.missing'], ['1', '515'])
        self.assertEqual(fields['mercury.elements'], '00:00:40:40:00:00:c0:c0')
        self.assertNotIn('mercury.contributors.first64', fields)

    def test_what_is_not_mercury_is_left_alone(self):
        data = packet(b'GET / HTTP/1.1\r\nHost: somebody.example\r\n\r\n', 4, PORT)
        layers, = tshark([(data, len(data))])
        self.assertNotIn('mercury', layers)


if __name__ == '__main__':
    if shutil.which('tshark') is None:
        sys.exit('tshark is missing: apt-get install tshark')
    unittest.main()
