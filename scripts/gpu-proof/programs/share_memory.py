"""Two processes of one session: one allocates, the other opens the same memory."""

import argparse
import ctypes
import json
import os
import socket
import subprocess
import sys

import gpu

SIZE = 512 * gpu.MIB
DEVICE, PINNED, POSIX_FD, READ_WRITE = 1, 1, 1, 3

parser = argparse.ArgumentParser()
parser.add_argument("--by", choices=["ipc", "fd"], required=True)
parser.add_argument("--importer", type=int, metavar="SOCKET")
options = parser.parse_args()


def mapped(driver, handle):
    """The address at which physical memory can be used."""
    address = ctypes.c_uint64()
    driver.call("cuMemAddressReserve", address, SIZE, 0, 0, 0)
    driver.call("cuMemMap", address, SIZE, 0, handle, 0)
    access = gpu.AccessDesc(gpu.Location(DEVICE, 0), READ_WRITE)
    driver.call("cuMemSetAccess", address, SIZE, access, 1)
    return address.value, SIZE


def exported(driver, channel):
    """Allocates and sends; what was allocated."""
    if options.by == "ipc":
        memory = driver.allocate(SIZE)
        driver.fill(memory, 7)
        handle = gpu.IpcHandle()
        driver.call("cuIpcGetMemHandle", handle, memory[0])
        channel.send(bytes(handle))
        return memory
    prop = gpu.AllocationProp(type=PINNED, handle_types=POSIX_FD, location=gpu.Location(DEVICE, 0))
    handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
    driver.call("cuMemCreate", handle, SIZE, prop, 0)
    memory = mapped(driver, handle)
    driver.fill(memory, 7)
    driver.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, POSIX_FD, 0)
    socket.send_fds(channel, [b"memory"], [descriptor.value])
    return memory


def imported(driver, channel):
    if options.by == "ipc":
        address = ctypes.c_uint64()
        handle = gpu.IpcHandle.from_buffer_copy(channel.recv(64))
        driver.call("cuIpcOpenMemHandle_v2", address, handle, 1)
        return address.value, SIZE
    _, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
    handle = ctypes.c_uint64()
    driver.call("cuMemImportFromShareableHandle", handle, ctypes.c_void_p(descriptors[0]), POSIX_FD)
    return mapped(driver, handle)


def importer(channel):
    driver = gpu.Driver()
    memory = imported(driver, channel)
    right = driver.holds(memory, 7)
    driver.fill(memory, 9)
    channel.send(json.dumps({"pid": os.getpid(), "right": right}).encode())
    channel.recv(1)


def main():
    if options.importer is not None:
        return importer(socket.socket(fileno=options.importer))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    command = [sys.executable, __file__, "--by", options.by, "--importer", str(theirs.fileno())]
    other = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    try:
        driver = gpu.Driver()
        memory = exported(driver, ours)
        answer = ours.recv(4096)
        if not answer:
            sys.exit("the importer failed")
        found = json.loads(answer)
        gpu.tell(exporter=os.getpid(), importer=found["pid"], right=found["right"] and driver.holds(memory, 9), bytes=SIZE)
        gpu.hear()
        ours.send(b".")
        gpu.tell(ended=other.wait(20))
    finally:
        if other.poll() is None:
            other.kill()
            other.wait()


main()
