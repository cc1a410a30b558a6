"""What the tests of the link run inside its two namespaces: an echo over TCP and datagrams that are counted.

`serve ADDRESS` prints "ready", then the number of datagrams at the end; `call ADDRESS PINGS BYTES DATAGRAMS` prints the
median round trip in seconds and whether so many bytes came back as they went.
"""

import os
import socket
import statistics
import sys
import threading
import time

PORT = 7007


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def serve(address: str) -> None:
    listener = socket.create_server((address, PORT))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    datagrams.bind((address, PORT))
    say("ready")
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    datagrams.setblocking(False)
    count = 0
    try:
        while datagrams.recv(100):
            count += 1
    except BlockingIOError:
        say(str(count))


def call(address: str, pings: int, size: int, datagrams: int) -> None:
    connection = socket.create_connection((address, PORT), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips_s = []
    for _ in range(pings):
        start_s = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        trips_s.append(time.monotonic() - start_s)
    sent, received = os.urandom(size), b""
    sender = threading.Thread(target=connection.sendall, args=(sent,))
    sender.start()
    while len(received) < size and (data := connection.recv(1 << 16)):
        received += data
    sender.join()
    flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(datagrams):
        flood.sendto(b"x", (address, PORT))
        time.sleep(0.0002)
    time.sleep(0.2)
    connection.close()
    say(f"{statistics.median(trips_s)} {received == sent}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[2], *(int(one) for one in sys.argv[3:]))
