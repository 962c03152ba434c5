"""An ordinary ZeroMQ program, one end of a pattern: it knows nothing of Mercury, and checks each message.

    /usr/bin/python3 zeromq_program.py PATTERN_SIDE bind|connect ENDPOINT [NAME=VALUE ...]

Ends with status 0 after all messages were right; standard output is its result, if it has one.
"""
import json
import random
import sys
import threading
import time

import zmq
from zmq.utils import monitor, z85

SIZES = (0, 1, 31, 32, 33, 255, 256, 8191, 8192, 8193, 65535, 65536, 1 << 20)
LARGE = 16_000_000
PATIENCE_MS = 60_000
EVENTS = {value: name[len("EVENT_"):] for name, value in vars(zmq).items() if name.startswith("EVENT_") and name != "EVENT_ALL"}


def payload(number, size):
    return random.Random(number).randbytes(size)


def payloads(count=60, large=True):
    """Message by message: each size, more small ones, and a large one among them."""
    sizes = [*SIZES, *(random.Random(number).randrange(3000) for number in range(count))]
    if large:
        sizes.insert(len(sizes) // 2, LARGE)
    return [payload(number, size) for number, size in enumerate(sizes)]


def check(got, expected, what):
    if got != expected:
        raise AssertionError(f"{what}: {len(got)} bytes {got[:20]!r}, not {len(expected)} bytes {expected[:20]!r}")


class End:
    """A context, and sockets that are bound or connected as the command line says."""

    def __init__(self, how, endpoint, **options):
        self.how, self.endpoint, self.options = how, endpoint, options
        self.context = zmq.Context()

    def socket(self, kind, at=0, how=None, **options):
        """At the endpoint, `at` ports further."""
        made = self.context.socket(kind)
        made.linger = PATIENCE_MS
        made.rcvtimeo = made.sndtimeo = PATIENCE_MS
        made.ipv6 = True
        for name, value in {"reconnect_ivl": 50, **options}.items():
            setattr(made, name, value)
        host, _, port = self.endpoint.rpartition(":")
        getattr(made, how or self.how)(f"tcp://{host}:{int(port) + at}")
        return made


# Each pattern: its two sides.
def rep(end):
    socket = end.socket(zmq.REP)
    for expected in payloads():
        check(socket.recv(), expected, "request")
        socket.send(expected[::-1])


def req(end):
    socket = end.socket(zmq.REQ)
    for message in payloads():
        socket.send(message)
        check(socket.recv(), message[::-1], "reply")


def router(end):
    """Answers each, in parts, until the dealers say that they are done."""
    socket = end.socket(zmq.ROUTER)
    dealers = set(end.options["dealers"].split(","))
    while dealers:
        name, kind, body = socket.recv_multipart()
        if kind == b"done":
            dealers.remove(name.decode())
        socket.send_multipart([name, kind, body, body[::-1]])


def dealer(end):
    socket = end.socket(zmq.DEALER, identity=end.options["name"].encode())
    messages = payloads()
    for message in messages:  # all are under way at once
        socket.send_multipart([b"work", message])
    for message in messages:
        kind, body, reversed_body = socket.recv_multipart()
        check(kind, b"work", "kind")
        check(body, message, "body")
        check(reversed_body, message[::-1], "part")
    socket.send_multipart([b"done", b""])
    check(socket.recv_multipart()[0], b"done", "kind")


def publish(end, kind):
    """Says hello until its subscriber has heard it, then publishes for two topics."""
    socket, control = end.socket(kind, sndhwm=0), end.socket(zmq.REP, at=1)
    if kind == zmq.XPUB:
        check(socket.recv(), b"\x01yes", "subscription")
    while not control.poll(10):
        socket.send_multipart([b"yes", b"hello"])
    check(control.recv(), b"start", "question")
    control.send(b"")
    for message in payloads():
        socket.send_multipart([b"yes", message])
        socket.send_multipart([b"no", message])
    check(control.recv(), b"done", "question")
    if kind == zmq.XPUB:
        check(socket.recv(), b"\x00yes", "end of a subscription")
    control.send(b"")


def subscribe(end, kind):
    # A subscription would be sent again, and lingers, if its publisher ends first.
    socket, control = end.socket(kind, rcvhwm=0, linger=0), end.socket(zmq.REQ, at=1)
    if kind == zmq.XSUB:
        socket.send(b"\x01yes")
    else:
        socket.subscribe(b"yes")
    check(socket.recv_multipart()[1], b"hello", "greeting")
    control.send(b"start")
    control.recv()
    for expected in payloads():
        message = socket.recv_multipart()
        while message[1] == b"hello":
            message = socket.recv_multipart()
        check(message[0], b"yes", "topic")
        check(message[1], expected, "message")
    if kind == zmq.XSUB:
        socket.send(b"\x00yes")
    control.send(b"done")
    control.recv()


def pub(end):
    publish(end, zmq.PUB)


def sub(end):
    subscribe(end, zmq.SUB)


def xpub(end):
    publish(end, zmq.XPUB)


def xsub(end):
    subscribe(end, zmq.XSUB)


def push(end):
    socket = end.socket(zmq.PUSH)
    for message in payloads():
        socket.send(message)
    socket.close()  # what is queued is sent all the same
    end.context.term()


def pull(end):
    socket = end.socket(zmq.PULL)
    for expected in payloads():
        check(socket.recv(), expected, "message")


def pair(end):
    """Both send at once, and as the other reads."""
    socket = end.socket(zmq.PAIR)
    messages = payloads()
    sent = received = 0
    while sent < len(messages) or received < len(messages):
        wanted = zmq.POLLIN * (received < len(messages)) | zmq.POLLOUT * (sent < len(messages))
        can = socket.poll(PATIENCE_MS, wanted)
        if not can:
            raise AssertionError(f"{sent} sent, {received} received, of {len(messages)}")
        if can & zmq.POLLOUT:
            socket.send(messages[sent])
            sent += 1
        if can & zmq.POLLIN:
            check(socket.recv(), messages[received], "message")
            received += 1


def stream(end):
    """An HTTP-like server of raw bytes: the whole of each client's line comes back, twice."""
    socket = end.socket(zmq.STREAM)
    lines, left = {}, int(end.options["clients"])
    while left:
        client, data = socket.recv_multipart()
        if not data:  # it came, or went
            left -= client in lines and lines.pop(client) == b"answered"
            lines.setdefault(client, b"")
            continue
        lines[client] += data
        if lines[client].endswith(b"\n"):
            socket.send_multipart([client, lines[client] * 2])
            lines[client] = b"answered"


def stream_client(end):
    socket = end.socket(zmq.STREAM)
    server, empty = socket.recv_multipart()
    check(empty, b"", "connect")
    line = payload(1, 300_000).replace(b"\n", b"") + b"\n"
    socket.send_multipart([server, line])
    got = b""
    while len(got) < 2 * len(line):
        got += socket.recv_multipart()[1]
    check(got, line * 2, "answer")


# Options of sockets, and what goes wrong.
def echo(end, **options):
    """A ROUTER that sends everything back until it is ended."""
    socket = end.socket(zmq.ROUTER, rcvtimeo=-1, **options)
    while True:
        socket.send_multipart(socket.recv_multipart())


def curve_keys(which):
    """The same in each process, as nothing hangs on their being secret."""
    secret = z85.encode(random.Random(which).randbytes(32))
    return zmq.curve_public(secret), secret


def curve_echo(end):
    from zmq.auth.thread import ThreadAuthenticator
    guard = ThreadAuthenticator(end.context)
    guard.start()
    guard.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
    public, secret = curve_keys("server")
    echo(end, curve_server=True, curve_publickey=public, curve_secretkey=secret)


def curve_client(end):
    public, secret = curve_keys("client")
    server = curve_keys(end.options.get("server", "server"))[0]
    socket = end.socket(zmq.DEALER, curve_serverkey=server, curve_publickey=public, curve_secretkey=secret,
                        rcvtimeo=int(end.options.get("patience_ms", PATIENCE_MS)), linger=0)
    try:
        for message in payloads(large=False):
            socket.send(message)
            check(socket.recv(), message, "answer")
    except zmq.Again:
        print("no answer")


class Watch:
    """The names of a socket's events, as they come."""

    def __init__(self, socket):
        self.socket, self.events = socket, []
        self.thread = threading.Thread(target=self.collect, args=(socket.get_monitor_socket(),))
        self.thread.start()

    def collect(self, monitored):
        while not self.events or self.events[-1] != "MONITOR_STOPPED":
            event = monitor.recv_monitor_message(monitored)["event"]
            self.events.append(EVENTS.get(event, str(event)))

    def count(self, name):
        return self.events.count(name)

    def stop(self):
        """Its socket is the thread's until then."""
        self.socket.disable_monitor()
        self.thread.join()


def say(*words):
    print(*words, flush=True)


def steady(end):
    """Asks an echo, one question after the other, and prints what it sees: each answer that follows an
    outage ("flows"), each DISCONNECTED. Questions are repeated until they are answered. Ends as its
    standard input does."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    heartbeat = int(end.options.get("heartbeat_ms", 0))
    options = {"heartbeat_ivl": heartbeat, "heartbeat_timeout": 5 * heartbeat} if heartbeat else {}
    socket = end.socket(zmq.DEALER, rcvtimeo=200, linger=0, sndtimeo=200, **options)
    watch = Watch(socket)
    told, flows, number, size = 0, False, 0, int(end.options.get("size", 1000))
    while not stop.is_set():
        number += 1
        question = b"%d:" % number + payload(number, size)
        try:
            socket.send(question)
            while (answer := socket.recv()) != question:
                if int(answer.partition(b":")[0]) >= number:
                    raise AssertionError("an answer that was never asked for")
        except zmq.Again:
            answer = None
        lost = watch.count("DISCONNECTED")
        if lost > told:
            told, flows, answer = lost, False, None  # that one came before
            say("lost")
        if answer is not None and not flows:
            flows = True
            say("flows")
    watch.stop()
    say(json.dumps({"questions": number}))


def client_events(end):
    """The events of a client's life: its server comes, answers, goes and comes again."""
    socket = end.context.socket(zmq.DEALER)
    socket.reconnect_ivl, socket.linger, socket.ipv6, socket.rcvtimeo = 50, 0, True, PATIENCE_MS
    watch = Watch(socket)
    socket.connect(f"tcp://{end.endpoint}")

    def ask():
        socket.send(b"question")
        check(socket.recv(), b"question", "answer")
        say("answered")

    def see(name, times):
        while watch.count(name) < times:
            time.sleep(0.01)
    ask()
    see("DISCONNECTED", 1)
    say("disconnected")
    see("HANDSHAKE_SUCCEEDED", 2)
    ask()
    watch.stop()
    # Whether a connect is at once, and how often it is refused meanwhile, depends on the moment.
    events = [event for event in watch.events if event != "CONNECT_DELAYED"]
    gone = events.index("DISCONNECTED")
    say(json.dumps(events[:gone + 1] + events[events.index("CONNECTED", gone):]))


def full(end):
    """Fills a queue that nobody reads, and prints how many messages it took until EAGAIN; they are all
    delivered once somebody reads."""
    socket = end.socket(zmq.PUSH, sndhwm=10, sndtimeo=2000)
    count = 0
    try:
        while count < 100_000:
            socket.send(payload(count % 7, 65_536))
            count += 1
    except zmq.Again:
        pass
    say(count)
    socket.linger = PATIENCE_MS
    socket.close()
    end.context.term()


def late_reader(end):
    socket = end.socket(zmq.PULL, rcvhwm=10)
    say("ready")
    count = int(sys.stdin.readline())  # when to start
    size = int(end.options.get("size", 65_536))
    for number in range(count):
        check(socket.recv(), payload(number % 7, size), f"message {number}")
    say("all")


def leaver(end):
    """Sends as many messages as the socket takes by itself, and ends."""
    socket = end.socket(zmq.PUSH)
    for number in range(int(end.options["count"])):
        socket.send(payload(number % 7, int(end.options["size"])))
    socket.close()
    end.context.term()


def endpoints(end):
    """Both ends in one program: wildcards, ports that the kernel chooses, names; and a source port of
    its own, again and again, to a server that echoes."""
    for bound, host in (("*", "127.0.0.1"), ("*", "localhost"), ("*", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]")):
        server, client = end.context.socket(zmq.REP), end.context.socket(zmq.REQ)
        for socket in (server, client):
            socket.ipv6, socket.linger, socket.rcvtimeo = True, 0, PATIENCE_MS
        server.bind(f"tcp://{bound}:*")
        port = int(server.last_endpoint.decode().rpartition(":")[2])
        client.connect(f"tcp://{host}:{port}")
        message = payload(port, 100_000)
        client.send(message)
        check(server.recv(), message, f"question to {host}")
        server.send(message[::-1])
        check(client.recv(), message[::-1], f"answer of {host}")
        for socket in (server, client):
            socket.close()
    for number in range(5):
        client = end.context.socket(zmq.DEALER)
        client.ipv6, client.linger, client.rcvtimeo = ":" in end.options["own"], 0, PATIENCE_MS
        client.connect(f"tcp://{end.options['own']};{end.endpoint}")
        client.send(b"question")
        check(client.recv(), b"question", f"answer {number}")
        client.close()


def crowd(end):
    """Many sockets that ask a server which may not take them all; once standard input has ended, all
    are answered."""
    sockets = [end.socket(zmq.DEALER, linger=0, rcvtimeo=PATIENCE_MS) for _ in range(int(end.options["sockets"]))]
    for socket in sockets:
        socket.send(b"question")
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    if not poller.poll(PATIENCE_MS):
        raise AssertionError("nobody is answered")
    time.sleep(1)  # the others try meanwhile
    say("some are answered")
    sys.stdin.read()
    for socket in sockets:
        # What was asked of a server that could not take it may be lost with that connection.
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not socket.poll(1000):
            if time.monotonic() > deadline:
                raise AssertionError("one is never answered")
            socket.send(b"question")
        check(socket.recv(), b"question", "answer")
    say("all are answered")


# What is urgent, and what is not.
BULK_SOCKETS, BULK_MESSAGES, BULK_BYTES, URGENT_BYTES = 8, 16, 1_000_000, 4_000_000


def bulk_reader(end):
    """Reads bulk. When a fifth is there it asks for the urgent message, and prints how many messages of
    bulk came before that did, and how long it took."""
    bulk, urgent = end.socket(zmq.PULL), end.socket(zmq.ROUTER, at=1)
    client, hello = urgent.recv_multipart()
    check(hello, b"hello", "greeting")
    block, message = payload(1, BULK_BYTES), payload(0, URGENT_BYTES)
    total, count, asked, came = BULK_SOCKETS * BULK_MESSAGES, 0, None, None
    poller = zmq.Poller()
    for socket in (bulk, urgent):
        poller.register(socket, zmq.POLLIN)
    while count < total or came is None:
        ready = dict(poller.poll(PATIENCE_MS))
        if urgent in ready:
            check(urgent.recv_multipart()[1], message, "urgent message")
            came = count, time.monotonic()
        elif bulk in ready:
            check(bulk.recv(), block, "bulk")
            count += 1
            if asked is None and count >= total // 5:
                urgent.send_multipart([client, b"go"])
                asked = count, time.monotonic()
        else:
            raise AssertionError(f"{count} of {total} came")
    say(json.dumps({"messages": came[0] - asked[0], "of": total - asked[0], "ms": 1000 * (came[1] - asked[1])}))
    urgent.send_multipart([client, b"all"])


def bulk_writer(end):
    """Queues 128 MB in eight sockets, and sends the urgent message when it is asked to: with `tos`."""
    urgent = end.socket(zmq.DEALER, at=1, tos=int(end.options["tos"]))
    urgent.send(b"hello")
    block, message = payload(1, BULK_BYTES), payload(0, URGENT_BYTES)
    sockets = [end.socket(zmq.PUSH, sndhwm=0) for _ in range(BULK_SOCKETS)]
    for _ in range(BULK_MESSAGES):
        for socket in sockets:
            socket.send(block)
    check(urgent.recv(), b"go", "word")
    urgent.send(message)
    check(urgent.recv(), b"all", "word")


# Many sockets, many threads.
def soak(end):
    """`threads` threads, each with `sockets` sockets to the echo, ask it for `seconds`; each answer is
    compared. Sockets are closed and opened again now and then. Prints how many answers there were."""
    seconds, threads, sockets = (float(end.options[name]) for name in ("seconds", "threads", "sockets"))
    deadline = time.monotonic() + seconds
    answers, bytes_of, failures = [0] * int(threads), [0] * int(threads), []

    def ask(me):
        dice = random.Random(me)
        kind = lambda: end.socket(zmq.DEALER, linger=0, reconnect_ivl=20)
        mine, number = [kind() for _ in range(int(sockets))], 0
        block = dice.randbytes(1 << 20)
        try:
            while time.monotonic() < deadline:
                asked = []
                for socket in mine:
                    for _ in range(dice.randrange(4)):
                        number += 1
                        size = min(int(dice.expovariate(1 / 5000)), len(block)) if dice.random() < 0.98 else dice.randrange(1 << 20)
                        at = dice.randrange(len(block) - size + 1)
                        question = b"%d.%d:" % (me, number) + block[at:at + size]
                        socket.send(question)
                        asked.append((socket, question))
                for socket, question in asked:
                    check(socket.recv(), question, "answer")
                    answers[me] += 1
                    bytes_of[me] += len(question)
                if dice.random() < 0.2:
                    which = dice.randrange(len(mine))
                    mine[which].close()
                    mine[which] = kind()
        except BaseException as error:
            failures.append(f"thread {me}: {error!r}")
            raise
    running = [threading.Thread(target=ask, args=(me,)) for me in range(int(threads))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    say(json.dumps({"answers": sum(answers), "bytes": sum(bytes_of)}))


def survive(end):
    """As soak, while whatever goes and comes back: questions may be lost, no answer may be wrong, and in
    the end each socket is answered. Prints how many answers there were."""
    seconds, threads, sockets = (float(end.options[name]) for name in ("seconds", "threads", "sockets"))
    deadline = time.monotonic() + seconds
    answers, failures = [0] * int(threads), []

    def question(me, number):
        return b"%d:%d:" % (me, number) + payload(number, number * 7919 % 30_000)

    def answered(me, socket, patience_ms):
        """Reads what has come."""
        if not socket.poll(patience_ms):
            return False
        answer = socket.recv()
        whose, number = map(int, answer.split(b":", 2)[:2])
        check(answer, question(me, number), f"answer {number} of {whose} to {me}")
        answers[me] += 1
        return True

    def ask(me):
        mine = [end.socket(zmq.DEALER, linger=0, sndtimeo=1000, reconnect_ivl=20) for _ in range(int(sockets))]
        number = 0
        try:
            while time.monotonic() < deadline:
                for socket in mine:
                    number += 1
                    try:
                        socket.send(question(me, number))
                    except zmq.Again:  # its queue is full, as nobody takes it
                        pass
                for socket in mine:
                    answered(me, socket, 300)
            for socket in mine:
                while answered(me, socket, 500):
                    pass
                end_at = time.monotonic() + PATIENCE_MS / 1000
                while True:
                    number += 1
                    socket.send(question(me, number))
                    if answered(me, socket, 1000):
                        break
                    if time.monotonic() > end_at:
                        raise AssertionError("it is never answered again")
        except BaseException as error:
            failures.append(f"thread {me}: {error!r}")
            raise
    running = [threading.Thread(target=ask, args=(me,)) for me in range(int(threads))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    say(json.dumps({"answers": sum(answers)}))


def main():
    name, how, endpoint, *options = sys.argv[1:]
    end = End(how, endpoint, **dict(option.split("=", 1) for option in options))
    globals()[name](end)
    end.context.destroy()


if __name__ == "__main__":
    main()
