"""The two ends of many connections that do nothing. They know nothing of Mercury.

    idle_program.py serve ADDRESS PORT         echoes, with all its connections in one epoll
    idle_program.py connect ADDRESS PORT COUNT

Who connects asks for an echo after each hundredth connection, so that not many wait to be accepted. It
says on a line how long each connection took, in microseconds; then it waits in epoll for its
connections and its standard input, and for each line there, a number, asks that many of them for an
echo, spread over all, and says "echoed". A connection that ends by itself ends the program.
"""
import json
import random
import resource
import select
import socket
import sys
import time

MESSAGE_BYTES = 64
MOST_WAITING = 100  # to be accepted


def as_many_descriptors_as_may_be():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(address, port):
    listener = socket.create_server((address, port), family=socket.AF_INET, backlog=4096)
    waiting, connections = select.epoll(), {}
    waiting.register(listener, select.EPOLLIN)
    print("listens", flush=True)
    while True:
        for number, _ in waiting.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                connections[connection.fileno()] = connection
                waiting.register(connection, select.EPOLLIN)
            elif message := connections[number].recv(MESSAGE_BYTES):
                connections[number].sendall(message)
            else:
                waiting.unregister(number)
                connections.pop(number).close()


def echo(connection):
    message = random.randbytes(MESSAGE_BYTES)
    connection.sendall(message)
    if connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL) != message:
        sys.exit("what came back is something else")


def connect(address, port, count):
    connections, took = [], []
    waiting = select.epoll()
    for _ in range(count):
        began = time.perf_counter()
        connections.append(socket.create_connection((address, port)))
        took.append(1e6 * (time.perf_counter() - began))
        waiting.register(connections[-1], select.EPOLLIN)
        if len(connections) % MOST_WAITING == 0:
            echo(connections[-1])
    waiting.register(sys.stdin, select.EPOLLIN)
    print(json.dumps(took), flush=True)
    while True:
        for number, _ in waiting.poll():
            if number != sys.stdin.fileno():
                sys.exit("a connection ended, or something came unasked")
        line = sys.stdin.readline()
        if not line:
            return
        for connection in connections[::max(1, count // int(line))]:
            echo(connection)
        print("echoed", flush=True)


as_many_descriptors_as_may_be()
if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    connect(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
