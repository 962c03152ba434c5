"""An ordinary asyncio program: a server that echoes until its client has no more, and many clients at
once that compare.

    asyncio_program.py serve ADDRESS PORT
    asyncio_program.py ask ADDRESS PORT CLIENTS BYTES
"""
import asyncio
import hashlib
import random
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


async def serve(address, port):
    async with await asyncio.start_server(echo, address, port, backlog=200) as server:
        await server.serve_forever()


async def ask(address, port, number, size):
    reader, writer = await asyncio.open_connection(address, port)
    sent = random.Random(number).randbytes(size)

    async def send():
        for at in range(0, size, 10_000):
            writer.write(sent[at:at + 10_000])
            await writer.drain()
        writer.write_eof()
    _, received = await asyncio.gather(send(), reader.read(-1))
    writer.close()
    if received != sent:
        raise AssertionError(f"client {number}: {len(received)} bytes, not the {size} that it sent")
    return hashlib.sha256(received).digest()


async def ask_all(address, port, clients, size):
    digests = await asyncio.gather(*(ask(address, port, number, size) for number in range(clients)))
    print(hashlib.sha256(b"".join(digests)).hexdigest())

if sys.argv[1] == "serve":
    asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
else:
    asyncio.run(ask_all(sys.argv[2], *map(int, sys.argv[3:])))
