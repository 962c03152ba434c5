"""One end of a connection on which nothing happens: blocked in one call until the other end closes.

    blocked_program.py listen|connect ADDRESS PORT poll|epoll|select|recv

It says "connected" before that call, and "closed" after it.
"""
import select
import socket
import sys


def block(connection, how):
    if how == "poll":
        waiting = select.poll()
        waiting.register(connection, select.POLLIN)
        waiting.poll()
    elif how == "epoll":
        waiting = select.epoll()
        waiting.register(connection, select.EPOLLIN)
        waiting.poll()
    elif how == "select":
        select.select([connection], [], [])
    return connection.recv(1)


side, address, port, how = sys.argv[1:]
if side == "listen":
    listener = socket.create_server((address, int(port)))
    print("listens", flush=True)
    connection, _ = listener.accept()
else:
    connection = socket.create_connection((address, int(port)))
print("connected", flush=True)
if block(connection, how) != b"":
    sys.exit("something came")
print("closed", flush=True)
