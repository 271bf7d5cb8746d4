"""Keeps the device busy in ways that a fair program would not."""

import argparse
import ctypes
import http.client
import json
import os
import signal
import socket
import threading
import time
import uuid

import gpu

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["calibrate", "threads", "deaths", "liar"])
parser.add_argument("--us", type=float, default=1000, help="how long a kernel takes")
parser.add_argument("--rounds", type=int, default=1, help="its rounds, from calibrate")
parser.add_argument("--seconds", type=float, default=5)
parser.add_argument("--threads", type=int, default=200)
parser.add_argument("--launch-ms", type=float, default=300, help="how much each process launches before it dies; 0: nothing")
parser.add_argument("--kill", action="store_true", help="dies by SIGKILL, not by _exit")
parser.add_argument("--socket", help="the daemon's")
options = parser.parse_args()


def calibrate():
    """The rounds that make a kernel as long as it should be."""
    driver = gpu.Driver()
    rounds = 10_000
    for _ in range(4):
        spin = gpu.Spin(driver, options.us, rounds)
        spin.launch()
        driver.call("cuCtxSynchronize")
        begun = time.monotonic()
        for _ in range(20):
            spin.launch()
        driver.call("cuCtxSynchronize")
        took_us = (time.monotonic() - begun) / 20 * 1e6
        rounds = max(1, round(rounds * options.us / took_us))
    gpu.tell(rounds=rounds)


def threads():
    """Each thread launches into a stream of its own, some kernels ahead."""
    driver = gpu.Driver()
    context = ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", context)
    until = time.monotonic() + options.seconds
    done = [0] * options.threads

    def one(number):
        driver.call("cuCtxSetCurrent", context)
        spin, stream = gpu.Spin(driver, options.us, options.rounds), ctypes.c_void_p()
        driver.call("cuStreamCreate", stream, 1)
        while time.monotonic() < until:
            for _ in range(8):
                spin.launch(stream)
            driver.call("cuStreamSynchronize", stream)
            done[number] += 8

    everyone = [threading.Thread(target=one, args=(number,)) for number in range(options.threads)]
    begun = time.monotonic()
    for each in everyone:
        each.start()
    for each in everyone:
        each.join()
    gpu.tell(kernels=sum(done), busy=sum(done) * options.us / 1e6 / (time.monotonic() - begun))


def deaths():
    """A process after the other launches and dies at once."""
    until, count = time.monotonic() + options.seconds, 0
    while time.monotonic() < until:
        child = os.fork()
        if child == 0:
            try:
                driver = gpu.Driver()
                spin = gpu.Spin(driver, options.us, options.rounds)
                for _ in range(round(options.launch_ms * 1000 / options.us)):
                    spin.launch()
            finally:
                os.kill(os.getpid(), signal.SIGKILL) if options.kill else os._exit(0)
        os.waitpid(child, 0)
        count += 1
    gpu.tell(deaths=count)


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


def liar():
    """Has a share of 1 %, uses what it is granted, and reports that it used nothing. It runs without the limiter."""
    driver = gpu.Driver()
    spin = gpu.Spin(driver, options.us, options.rounds)
    daemon = Connection(options.socket)

    def call(path, body):
        daemon.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = daemon.getresponse()
        text = answer.read()
        return json.loads(text) if answer.status == 200 else None

    device = ctypes.create_string_buffer(16)
    driver.call("cuDeviceGetUuid", device, 0)
    device = f"GPU-{uuid.UUID(bytes=device.raw)}"
    quota = {"uuid": device, "policy": "fixed", "share_ppm": 10_000, "weight": 1, "priority": "high", "soft_ppm": None}
    registered = call("/v1/register", {"protocol": 2, "session": "liar", "devices": [quota]})
    if registered is None:
        raise SystemExit("the daemon refused the registration")
    until, kernels, report = time.monotonic() + options.seconds, 0, None
    while time.monotonic() < until:
        asked = {"worker": registered["worker"], "uuid": device, "report": report, "ask": 15_000}
        decision, report = call("/v1/admission", asked), None
        lease = decision and decision["lease"]
        if not lease:
            continue
        end = time.monotonic() + lease["length_us"] / 1e6
        while time.monotonic() < min(end, until):
            for _ in range(2):
                spin.launch()
            driver.call("cuCtxSynchronize")
            kernels += 2
        report = {"lease": lease["id"], "held_us": 0, "estimated_us": 0, "backlogged_us": 0, "done": True}
    gpu.tell(kernels=kernels, busy=kernels * options.us / 1e6 / options.seconds)


{"calibrate": calibrate, "threads": threads, "deaths": deaths, "liar": liar}[options.how]()
