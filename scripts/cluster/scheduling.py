"""Pods that kube-scheduler and the extender place on nodes without kubelets: scheduling.py API ROUNDS PID..., called by
scheduling.sh. The processes with these ids are the replica that leads."""

import http.client
import json
import os
import random
import signal
import ssl
import sys
import threading
import time
import urllib.parse

API, ROUNDS, LEADERS = sys.argv[1], int(sys.argv[2]), [int(pid) for pid in sys.argv[3:]]
PODS, NODES = "/api/v1/namespaces/default/pods", "/api/v1/nodes"
LANES = 5
LOCAL = threading.local()


def call(method, path, body=None, kind="application/json", missing=False):
    """The answer as JSON. None: nothing is there, where that is to be expected."""
    if not hasattr(LOCAL, "connection"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        LOCAL.connection = http.client.HTTPSConnection(urllib.parse.urlsplit(API).netloc, context=context, timeout=30)
    headers = {"Authorization": "Bearer sluice", "Content-Type": kind}
    LOCAL.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = LOCAL.connection.getresponse()
    text = answer.read()
    if answer.status == 404 and missing:
        return None
    if answer.status >= 300:
        sys.exit(f"{method} {path}: {answer.status} {text[:500]!r}")
    return json.loads(text)


def gpu(node, index):
    return f"GPU-00552014-5c87-89ac-b1a6-{node:06x}{index:06x}"


def make_node(group, number, gpus, places=4):
    """A node whose GPUs have 100 cores and 80 GiB each. Returns its name."""
    register = [{"id": index, "type": "A100", "uuid": gpu(number, index), "core": 100, "memory": 81920, "number": places,
                 "numa": 0, "mig": False, "busId": "", "capability": 8.0, "healthy": True} for index in range(gpus)]
    name = f"{group}-{number}"
    has = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/vgpu-number": str(gpus * places)}
    call("POST", NODES, {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"group": group}, "annotations": {
            "nvidia.com/node-device-register": json.dumps(register)}},
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}})
    return name


def make_pod(name, group, cores, priority=None, on=None):
    """`on`: node and GPU where it is already."""
    limits = {"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": str(cores), "nvidia.com/vgpu-memory": "1024"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
           "spec": {"schedulerName": "vgpu-scheduler", "nodeSelector": {"group": group}, "priorityClassName": priority,
                    "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]}}
    if on:
        node, device = on
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"] = {"nvidia.com/pre-allocated": f"main[0_{device}_{cores}_1024]"}
    call("POST", PODS, pod)


def delete(name):
    call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def node_of(name):
    pod = call("GET", f"{PODS}/{name}", missing=True)
    return pod and pod["spec"].get("nodeName")


def is_refused(name):
    conditions = call("GET", f"{PODS}/{name}")["status"].get("conditions", [])
    return any(one.get("reason") == "Unschedulable" for one in conditions)


def until(what, so, most=30.0):
    """Waits until it is so. Returns how long that was."""
    begun = time.monotonic()
    while not so():
        if time.monotonic() - begun > most:
            # Also from a thread.
            print(f"not within {most} s: {what}", flush=True)
            os._exit(1)
        time.sleep(0.01)
    return time.monotonic() - begun


def on_gpus(group):
    """The cores that are claimed of each GPU by the pods that are on nodes of a group."""
    sums = {}
    for pod in call("GET", PODS)["items"]:
        if pod["spec"]["nodeSelector"]["group"] == group and pod["spec"].get("nodeName"):
            claim = pod["metadata"]["annotations"]["nvidia.com/pre-allocated"]
            _, device, cores, _ = claim[len("main["):-1].split("_")
            sums.setdefault(device, []).append(int(cores))
    return sums


def placed(group):
    return sum(len(cores) for cores in on_gpus(group).values())


def freed(lane, rounds, took):
    """A pod waits for the only GPU, which becomes free."""
    group = f"lane{lane}"
    make_node(group, lane, 1)
    holder = f"{group}-holder"
    make_pod(holder, group, 100)
    until("the first pod is bound", lambda: bool(node_of(holder)))
    for at in range(rounds):
        waits = f"{group}-{at}"
        make_pod(waits, group, 100)
        until(f"{waits} is refused", lambda: is_refused(waits))
        time.sleep(random.random() / 4)
        delete(holder)
        took.append(until(f"{waits} is bound", lambda: bool(node_of(waits))))
        holder = waits
    delete(holder)


def freed_gpus():
    took = []
    lanes = [threading.Thread(target=freed, args=(lane, ROUNDS // LANES, took)) for lane in range(LANES)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    took.sort()
    print(f"a freed GPU: {len(took)} rounds, bound within {took[len(took) // 2]:.2f} s (median), {took[-1]:.2f} s at most")
    late = [round(one, 2) for one in took if one > 2]
    if late or len(took) != ROUNDS // LANES * LANES:
        sys.exit(f"a freed GPU has to be bound within 2 s in each round: {late}")


def first_try():
    """One of 500 nodes has room, each time another one."""
    holders = []
    for at in range(500):
        name = make_node("many", 1000 + at, 1)
        holders.append(f"holder-{at}")
        make_pod(holders[at], "many", 100, on=(name, gpu(1000 + at, 0)))
    time.sleep(2)
    tries, longest = ROUNDS // 5, 0.0
    for at in range(tries):
        free = random.randrange(500)
        delete(holders[free])
        # Long enough that all watches have it.
        time.sleep(0.2)
        holders[free] = f"first-{at}"
        make_pod(holders[free], "many", 100)
        longest = max(longest, until("it is bound", lambda: bool(node_of(holders[free]))))
        if node_of(holders[free]) != f"many-{1000 + free}" or is_refused(holders[free]):
            sys.exit(f"{holders[free]} is bound to {node_of(holders[free])}, and not at the first try to many-{1000 + free}")
    print(f"500 nodes of which one has room: {tries} of {tries} pods bound at the first try, within {longest:.2f} s")


def preemption():
    """By what kubelets count: this kube-scheduler never asks an extender which pods have to end."""
    for name, value in (("high", 1000), ("low", 1)):
        call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value})
    make_node("places", 2000, 2)
    for at in range(8):
        make_pod(f"low-{at}", "places", 10, "low")
    until("all places are taken", lambda: placed("places") == 8)
    make_pod("high", "places", 40, "high")
    took = until("the pod of high priority is bound", lambda: bool(node_of("high")))
    # Its own update of the pod's status makes this kube-scheduler try some pods twice, so that two pods end.
    left = placed("places") - 1
    print(f"all 8 places taken: a pod of high priority bound after {took:.1f} s, {left} of 8 pods of low priority left")
    if left < 6:
        sys.exit("at most two pods may end")


def leader_killed():
    """As many pods as GPUs, two of which fit on none."""
    pods = 200
    for at in range(pods // 8):
        make_node("replicas", 3000 + at, 8)
    begun = threading.Thread(target=lambda: [make_pod(f"replica-{at}", "replicas", 60) for at in range(pods)])
    begun.start()
    until("some are bound", lambda: placed("replicas") >= pods // 5)
    for pid in LEADERS:
        os.kill(pid, signal.SIGKILL)
    killed, before = time.monotonic(), placed("replicas")
    begun.join()
    until("it goes on", lambda: placed("replicas") > before, 60)
    goes_on = time.monotonic() - killed
    until("all are bound", lambda: placed("replicas") == pods, 120)
    twice = {device: cores for device, cores in on_gpus("replicas").items() if sum(cores) > 100}
    print(f"the leader killed with {before} of {pods} pods bound: on after {goes_on:.1f} s, all bound after "
          f"{time.monotonic() - killed:.1f} s, {len(twice)} GPUs placed twice")
    if twice or goes_on > 20:
        sys.exit(f"none may be placed twice, and it has to go on within 20 s: {twice}")


freed_gpus()
first_try()
preemption()
leader_killed()
