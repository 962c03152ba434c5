"""What one program sees of sockets, line by line, without what differs from run to run (ports, times). The
test runs it by the kernel and over Mercury: both must say the same. usage: calls.py ADDRESS"""
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

ADDRESS = sys.argv[1]
FAMILY = socket.AF_INET6 if ":" in ADDRESS else socket.AF_INET


def say(*what):
    print(*what, flush=True)


def attempt(call, *arguments):
    """What it returns, or the name of its error."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def listener(backlog=16):
    made = socket.socket(FAMILY, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((ADDRESS, 0))
    made.listen(backlog)
    return made


def ends(prepare=lambda client: None):
    server_listens = listener()
    client = socket.socket(FAMILY, socket.SOCK_STREAM)
    prepare(client)
    client.connect(server_listens.getsockname())
    server, _ = server_listens.accept()
    server_listens.close()
    return client, server


def names():
    listens = listener()
    client = socket.create_connection(listens.getsockname()[:2])
    server, peer = listens.accept()
    say("names", client.getpeername() == listens.getsockname() == server.getsockname(),
        server.getpeername() == client.getsockname() == peer, client.getsockname()[0], client.family)
    say("facts", os.fstat(client.fileno()).st_mode & 0o170000 == 0o140000, os.get_inheritable(client.fileno()),
        client.getblocking())
    # As a program that was given the number alone: Python asks for domain, type and protocol.
    copy = socket.socket(fileno=os.dup(server.fileno()))
    say("copy", copy.family, copy.type, copy.proto)
    say("again", attempt(client.connect, listens.getsockname()))
    say("in use", attempt(socket.socket(FAMILY).bind, listens.getsockname()))
    say("not connected", attempt(socket.socket(FAMILY).getpeername))


def reads_and_writes():
    client, server = ends()
    client.sendmsg([b"ab", b"", b"cde"])
    say("peek", server.recv(16, socket.MSG_PEEK), server.recv(2))
    say("nothing for", attempt(server.recv, 0), attempt(client.send, b""))
    buffers = [bytearray(2), bytearray(5)]
    say("readv", os.readv(server.fileno(), buffers), buffers)
    say("would block", attempt(server.recv, 1, socket.MSG_DONTWAIT))
    threading.Timer(0.05, client.sendall, (b"second",)).start()
    client.sendall(b"first ")
    say("all", server.recv(12, socket.MSG_WAITALL))
    os.write(client.fileno(), b"written")
    say("waiting", struct.unpack("i", fcntl.ioctl(server, termios.FIONREAD, bytes(4)))[0])
    say("recvmsg", server.recvmsg(100, 100)[:3], server.recvmsg_into.__name__)
    client.sendall(b"from")
    say("recvfrom", server.recvfrom(100)[0])
    with tempfile.TemporaryFile() as file:
        file.write(b"f" * 100000)
        say("sendfile", os.sendfile(client.fileno(), file.fileno(), 10, 5000), len(server.recv(5000, socket.MSG_WAITALL)))
    server.settimeout(0.05)
    say("times out", attempt(server.recv, 1))
    server.settimeout(None)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
    say("the kernel's timeout", attempt(server.recv, 1))
    say("urgent", attempt(server.recv, 1, socket.MSG_OOB))


def much():
    client, server = ends()
    data = os.urandom(1 << 20) * 8
    sent = threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)))
    sent.start()
    got = bytearray()
    while part := server.recv(100000):
        got += part
    sent.join()
    server.sendall(b"thanks")
    say("much", got == data, client.recv(100))
    client.setblocking(False)
    server.setblocking(False)
    filled = 0
    while (count := attempt(server.send, bytes(65536))) != "EAGAIN":
        filled += count
    while filled > 0:
        filled -= len(client.recv(1 << 20))
    say("full, and empty again", filled, attempt(client.recv, 1))


def ways_to_end():
    client, server = ends()
    client.sendall(b"last")
    client.close()
    say("closed", server.recv(10), server.recv(10), server.recv(10), server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    client, server = ends()
    client.shutdown(socket.SHUT_WR)
    say("half", server.recv(10), attempt(client.send, b"x"), server.send(b"still"), client.recv(10))
    server.close()
    say("whole", client.recv(10))
    client, server = ends()
    client.sendall(b"never read")
    select.select([server], [], [])
    server.close()
    say("unread", attempt(client.recv, 10), attempt(client.recv, 10), attempt(client.send, b"x"))
    for closes, other in (ends(), reversed(ends())):
        closes.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        closes.sendall(b"last")
        closes.close()
        say("reset", other.recv(10), attempt(other.recv, 10), attempt(other.recv, 10))
    client, server = ends()
    reader = threading.Thread(target=lambda: say("woken", server.recv(10)))
    reader.start()
    time.sleep(0.05)
    server.shutdown(socket.SHUT_RDWR)
    reader.join()
    say("nobody", attempt(socket.create_connection, (ADDRESS, free_port())))
    client, server = ends()
    server.close()
    client.recv(1)
    attempt(client.send, b"x")
    time.sleep(0.05)
    say("write to nobody", attempt(client.send, b"x"))


def free_port():
    with socket.socket(FAMILY) as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]



def waits():
    client, server = ends()
    pipe_reads, pipe_writes = os.pipe()
    number = {server.fileno(): "server", client.fileno(): "client", pipe_reads: "pipe"}
    named = lambda found: sorted((number[fd], bits) for fd, bits in found)
    poll = select.poll()
    for fd in (server.fileno(), pipe_reads):
        poll.register(fd, select.POLLIN)
    epoll, edges, outer = select.epoll(), select.epoll(), select.epoll()
    epoll.register(server, select.EPOLLIN | select.EPOLLRDHUP)
    epoll.register(pipe_reads, select.EPOLLIN)
    edges.register(server, select.EPOLLIN | select.EPOLLET)
    outer.register(epoll, select.EPOLLIN)
    say("nothing", poll.poll(0), epoll.poll(0), edges.poll(0), outer.poll(0))
    client.send(b"abc")
    say("poll", named(poll.poll()), named(epoll.poll()), named(edges.poll(1)), len(outer.poll(1)))
    say("level, edge", named(epoll.poll(0)), named(edges.poll(0)))
    os.write(pipe_writes, b"x")
    say("both", named(poll.poll()), named(epoll.poll()), len(select.select([server, pipe_reads], [], [], 0)[0]))
    client.send(b"def")
    say("next edge", named(edges.poll(1)))
    server.recv(100)
    os.read(pipe_reads, 1)
    epoll.modify(server, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
    say("once", named(epoll.poll(1)), named(epoll.poll(0)))
    epoll.modify(server, select.EPOLLIN | select.EPOLLRDHUP)
    client.shutdown(socket.SHUT_WR)
    say("half closed", named(epoll.poll(1)))
    client.close()
    say("end", server.recv(1))
    epoll.unregister(server)
    say("gone", epoll.poll(0))


def connects_without_waiting():
    listens = listener()
    listens.setblocking(False)
    say("nobody yet", attempt(listens.accept))
    client = socket.socket(FAMILY, socket.SOCK_STREAM)
    client.setblocking(False)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLOUT | select.EPOLLIN)
    say("begins", client.connect_ex(listens.getsockname()) in (0, errno.EINPROGRESS))
    say("writable", [bits for _, bits in epoll.poll(5)], client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    client.connect_ex(listens.getsockname())  # the kernel says once that it is done
    say("connected", errno.errorcode[client.connect_ex(listens.getsockname())])
    select.select([listens], [], [])
    server, _ = listens.accept()
    say("accepted blocks", server.getblocking(), os.get_inheritable(server.fileno()))
    server.send(b"x")
    epoll.modify(client, select.EPOLLIN)
    say("readable", [bits for _, bits in epoll.poll(5)])
    refused = socket.socket(FAMILY, socket.SOCK_STREAM)
    refused.setblocking(False)
    if refused.connect_ex((ADDRESS, free_port())) == errno.EINPROGRESS:
        select.select([], [refused], [])
        say("refused", errno.errorcode[refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
    else:
        say("refused ECONNREFUSED")


def processes():
    client, server = ends()
    if os.fork() == 0:
        client.sendall(b"child")
        os._exit(0)
    os.wait()
    say("fork", server.recv(5, socket.MSG_WAITALL))
    client.sendall(b"through cat")
    client.shutdown(socket.SHUT_WR)
    done = subprocess.run(["cat"], stdin=server, stdout=server, check=False)
    server.close()
    say("exec", done.returncode, client.recv(100, socket.MSG_WAITALL))
    listens = listener()
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            taken, _ = listens.accept()
            taken.sendall(b"served")
            os._exit(0)
        children.append(child)
    for _ in children:
        with socket.create_connection(listens.getsockname()[:2]) as asks:
            say("prefork", asks.recv(10, socket.MSG_WAITALL))
    for child in children:
        os.waitpid(child, 0)
    left, right = socket.socketpair()
    client, server = ends()
    socket.send_fds(left, [b"x"], [client.fileno()])
    _, got, _, _ = socket.recv_fds(right, 1, 1)
    client.close()
    os.write(got[0], b"handed on")
    say("handed on", server.recv(100))


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("bytes", ctypes.c_size_t)]


class Head(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint), ("parts", ctypes.POINTER(Part)), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t), ("flags", ctypes.c_int)]


class Message(ctypes.Structure):
    _fields_ = [("head", Head), ("bytes", ctypes.c_uint)]


def messages(*texts):
    made = (Message * len(texts))()
    for one, text in zip(made, texts):
        one.head.parts, one.head.count = ctypes.pointer(Part(text, len(text))), 1
    return made


def rarer_calls():
    """By the numbers of descriptors, and by those names of glibc that Python has no use for."""
    libc = ctypes.CDLL(None, use_errno=True)
    client, server = ends()
    copies = [fcntl.fcntl(client, fcntl.F_DUPFD, 100), fcntl.fcntl(client, fcntl.F_DUPFD_CLOEXEC, 110), os.dup2(client.fileno(), 120)]
    for copy in copies:
        os.write(copy, b"by a copy")
    say("copies", [copy >= 100 for copy in copies], [os.get_inheritable(copy) for copy in copies], server.recv(27, socket.MSG_WAITALL))
    libc.close_range(100, 130, 0)
    say("close_range", attempt(os.write, copies[2], b"x"), client.send(b"left"), server.recv(9))
    room = ctypes.create_string_buffer(16)
    for name, arguments in (("__recv_chk", (16, 16, 0)), ("__read_chk", (16, 16)), ("__recvfrom_chk", (16, 16, 0, None, None))):
        client.send(name.encode())
        say(name, getattr(libc, name)(server.fileno(), room, *arguments), room.value[:len(name)])
    say("sendmmsg", libc.sendmmsg(client.fileno(), messages(b"first", b"second"), 2, 0), server.recv(11, socket.MSG_WAITALL))
    client.send(b"all in one")
    got = messages(bytes(16), bytes(16))
    say("recvmmsg", libc.recvmmsg(server.fileno(), got, 2, socket.MSG_DONTWAIT, None), [one.bytes for one in got])
    reads, writes = os.pipe()
    client.send(b"spliced")
    say("splice", os.splice(server.fileno(), writes, 7), os.splice(reads, server.fileno(), 7), client.recv(9))
    wanted, moment = (ctypes.c_ulong * 16)(), (ctypes.c_long * 2)(5, 0)
    wanted[server.fileno() // 64] = 1 << server.fileno() % 64
    client.send(b"x")
    say("pselect", libc.pselect(server.fileno() + 1, wanted, None, None, moment, (ctypes.c_ulong * 16)()), server.recv(1))
    client.sendall(b"through another cat")
    client.shutdown(socket.SHUT_WR)
    child = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, server.fileno(), number) for number in (0, 1)])
    server.close()
    say("posix_spawn", client.recv(100, socket.MSG_WAITALL), os.waitpid(child, 0)[1])


def interruptions():
    client, server = ends()
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.siginterrupt(signal.SIGALRM, True)
    listens = listener()
    for what, call in (("recv", lambda: server.recv(1)), ("accept", listens.accept)):
        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            call()
            say(what, "was not interrupted")
        except Stop:
            say(what, "is interrupted")
    client.send(b"on")
    say("and goes on", server.recv(2))


def options():
    client, server = ends(lambda s: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33))
    for end in (client, server):
        for level, name, value in ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                                   (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 9),
                                   (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000), (socket.IPPROTO_TCP, socket.TCP_CORK, 1),
                                   (socket.SOL_SOCKET, socket.SO_PRIORITY, 3), (socket.SOL_SOCKET, socket.SO_SNDBUF, 20000)):
            say("option", level, name, attempt(end.setsockopt, level, name, value), end.getsockopt(level, name))
    say("before", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
    say("established", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    say("none", attempt(client.setsockopt, socket.SOL_SOCKET, 9999, 1))


for part in (names, reads_and_writes, much, ways_to_end, waits, connects_without_waiting, processes, rarer_calls, interruptions, options):
    say("--", part.__name__)
    part()
