"""Checks deploy/kubernetes without a cluster: check.py HYPERVISOR, the program that containers run.

Needs Go, and of PyPI PyYAML, jsonschema, kubernetes-validate and cel-python. UPDATE_DOCS=1 writes base/sluice.yaml anew:
the chart with its own values.
"""

import copy
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import celpy
import jsonschema
import kubernetes_validate
import yaml

DEPLOY = "deploy/kubernetes"
BASE = f"{DEPLOY}/base/sluice.yaml"
HEADER = "# Written by UPDATE_DOCS=1 python3 scripts/kubernetes/check.py HYPERVISOR, from ../chart.\n"
AGENT, SCHEDULER = ("DaemonSet", "sluice-node"), ("Deployment", "sluice-scheduler")
wrong = []


def expect(holds, what):
    if not holds:
        wrong.append(what)


def documents(text):
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def read(path):
    with open(f"{DEPLOY}/{path}", encoding="utf-8") as file:
        return yaml.safe_load(file)


VALUES, CHART = read("chart/values.yaml"), read("chart/Chart.yaml")
with open(f"{DEPLOY}/base/namespace.yaml", encoding="utf-8") as namespace:
    NAMESPACE = documents(namespace.read())
with open(f"{DEPLOY}/chart/values.schema.json", encoding="utf-8") as schema:
    SCHEMA = json.load(schema)


def merged(values):
    """Values over the chart's own, as helm lays them."""
    def over(base, other):
        for key, value in other.items():
            both = isinstance(value, dict) and isinstance(base.get(key), dict)
            base[key] = over(base[key], value) if both else value
        return base

    return over(copy.deepcopy(VALUES), values)


def text_of(program, values, files, minor=34):
    """What the chart's files are with these values, on a cluster of this minor version."""
    data = {
        "Values": merged(values),
        "Chart": {"AppVersion": str(CHART["appVersion"]), "Name": CHART["name"]},
        "Release": {"Namespace": "sluice", "Name": "sluice", "Service": "kubectl"},
        "Capabilities": {"KubeVersion": {"Minor": f"{minor}+"}},
    }
    jsonschema.validate(data["Values"], SCHEMA)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        helpers = f"{DEPLOY}/chart/templates/_helpers.tpl"
        run = subprocess.run([program, file.name, helpers, *files], capture_output=True, text=True, check=False)
    expect(run.returncode == 0, f"the chart with {values}: {run.stderr}")
    expect("<no value>" not in run.stdout, f"the chart with {values}: a value is missing")
    return run.stdout


def pod_of(objects, key):
    return objects[key]["spec"]["template"]["spec"]


def all_containers(objects):
    """Name, pod and container of each."""
    for key, one in objects.items():
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("initContainers", []) + pod.get("containers", []):
            yield f"{key[1]}/{container['name']}", pod, container


@functools.cache
def refusal(*words):
    """What the program says to its words, which end before it would act on them."""
    run = subprocess.run([sys.argv[1], *words, "--help"], capture_output=True, text=True, check=False)
    return run.stderr.partition("\n")[0] if run.returncode else ""


def check_command_lines(container, name):
    lines = [[*container["command"], *container["args"]]]
    lines += [container[probe].get("exec", {}).get("command", []) for probe in container if probe.endswith("Probe")]
    for line in lines:
        if line[:1] == ["/usr/bin/hypervisor"]:
            refused = refusal(*line[1:])
            expect(not refused, f"{name}: {' '.join(line)}: {refused}")


def check_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)

    def described(schema, values, place):
        for name, one in schema.get("properties", {}).items():
            expect(one.get("description"), f"{place}{name} is not described")
            if "properties" in one:
                expect(set(one["properties"]) == set(values[name]), f"{place}{name}: no schema, or no default")
                described(one, values[name], f"{place}{name}.")

    described(SCHEMA, VALUES, "")
    expect(set(SCHEMA["properties"]) == set(VALUES), "a value is without a schema, or has no default")
    for bad in [
        {"dialects": ["other"]}, {"dialects": []}, {"devices": "all"}, {"deviceSplit": 0}, {"coresScaling": "half"}, {"memoryScaling": 0.5},
        {"resourceNames": {"nvidia.com/gpu": "gpu"}}, {"resourceNames": {"gpu": "example.com/gpu"}},
        {"unknown": 1}, {"featureGates": {"Reschedule": "yes"}}, {"kubeletDir": "var"}, {"driverDir": "lib"},
        {"image": {"digest": "1234"}}, {"image": {"repository": ""}}, {"scheduler": {"name": ""}},
        {"metrics": {"enabled": True, "tokenSecret": ""}},
    ]:
        try:
            jsonschema.validate(merged(bad), SCHEMA)
            wrong.append(f"the schema accepts {bad}")
        except jsonschema.ValidationError:
            pass


def check_objects(objects, what):
    """What holds for whatever values."""
    for name, pod, container in all_containers(objects):
        name = f"{what}: {name}"
        check_command_lines(container, name)
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        expect(mounts <= volumes, f"{name}: a mount without a volume")
        rights = container["securityContext"]
        expect(rights["readOnlyRootFilesystem"], f"{name}: its root can be written to")
        drops = rights.get("capabilities", {}).get("drop") == ["ALL"]
        expect(drops != bool(rights.get("privileged")), f"{name}: its rights are {rights}")
        expect(container["resources"]["limits"].get("memory"), f"{name}: no memory limit")
        if container not in pod.get("initContainers", []):
            expect({"livenessProbe", "readinessProbe"} <= set(container), f"{name}: no probes")
    standard = {f"app.kubernetes.io/{one}" for one in ["name", "instance", "version", "part-of", "managed-by"]}
    for key, one in objects.items():
        expect(key in NAMESPACE or standard <= set(one["metadata"].get("labels", {})), f"{what}: {key}: labels")


def keeps_image_preloads(pod, version):
    """The hook's program is put where the agent names it, and the agent sees the node's folder of CDI files."""
    put, agent = pod["initContainers"][0], pod["containers"][1]
    hook = f"--hook=/var/lib/sluice/hook/{version}/hypervisor"
    sees = {"name": "cdi", "mountPath": "/var/run/cdi"} in agent["volumeMounts"]
    nodes = {"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}} in pod["volumes"]
    return hook in put["args"] and {hook, "--keep-image-preloads"} <= set(agent["args"]) and sees and nodes


def check_overlays(kubectl, base):
    def kustomized(folder):
        run = subprocess.run([kubectl, "kustomize", f"{DEPLOY}/{folder}"], capture_output=True, text=True, check=False)
        expect(run.returncode == 0, f"kubectl kustomize {folder}: {run.stderr}")
        return documents(run.stdout)

    whole = kustomized("base")
    check_objects(whole, "base")
    expect(whole.keys() == base.keys() | NAMESPACE.keys(), "kustomize makes other objects")
    expect(whole[("RoleBinding", "sluice-scheduler-authentication-reader")]["metadata"]["namespace"] == "kube-system",
           "kustomize moves a binding out of kube-system")
    enforced = whole[("Namespace", "sluice")]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    expect(enforced == "privileged", "the namespace does not admit the agent")
    with tempfile.TemporaryDirectory(dir=DEPLOY) as overlay:
        with open(f"{overlay}/kustomization.yaml", "w", encoding="utf-8") as file:
            yaml.safe_dump({"resources": ["../base"], "components": ["../image-preloads", "../reschedule"]}, file)
        changed = kustomized(os.path.basename(overlay))
    check_objects(changed, "the components")
    expect(changed[("ClusterRole", "sluice-node")]["rules"][0]["verbs"][-1] == "delete", "reschedule: no right to delete")
    args = pod_of(changed, AGENT)["containers"][1]["args"]
    gates = [one for one in args if one.startswith("--feature-gates=")]
    expect(gates == ["--feature-gates=CorePlugin=true,Reschedule=true"], f"reschedule: {args}")
    expect(keeps_image_preloads(pod_of(changed, AGENT), "0.1.0"), "image-preloads")
    older = whole.keys() - kustomized("before-1.30").keys()
    expect({kind for kind, _ in older} == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, f"before-1.30: {older}")


def check_chart(program):
    files = sorted(glob.glob(f"{DEPLOY}/chart/templates/*.yaml"))

    def rendered(values, minor=34):
        objects = documents(text_of(program, values, files, minor))
        check_objects(objects, f"the chart with {values}")
        return objects

    written = HEADER + text_of(program, {}, files)
    if os.environ.get("UPDATE_DOCS"):
        with open(BASE, "w", encoding="utf-8") as file:
            file.write(written)
    with open(BASE, encoding="utf-8") as file:
        expect(file.read() == written, f"chart and {BASE} differ: UPDATE_DOCS=1 writes it anew")

    gates = rendered({"featureGates": {"MemoryPlugin": True, "Reschedule": True}, "dialects": ["hami", "volcano"]})
    expect("delete" in gates[("ClusterRole", "sluice-node")]["rules"][0]["verbs"], "no right to delete with Reschedule")
    args = pod_of(gates, AGENT)["containers"][1]["args"]
    expect("--feature-gates=CorePlugin=true,MemoryPlugin=true,Reschedule=true" in args and "--dialects=hami,volcano" in args, f"{args}")
    for values, wanted in [
        ({}, "SerialBindNode=true"), ({"SerializedNodeBind": False}, "SerializedNodeBind=false"),
        ({"GPUTopology": True}, "GPUTopology=true,SerialBindNode=true"),
    ]:
        args = pod_of(rendered({"featureGates": values}), SCHEDULER)["containers"][1]["args"]
        expect(f"--feature-gates={wanted}" in args, f"the extender with the gates {values}: {args}")
    scaled = pod_of(rendered({"coresScaling": 2, "memoryScaling": "1.5"}), AGENT)["containers"][1]["args"]
    expect({"--cores-scaling=2", "--memory-scaling=1.5"} <= set(scaled), f"{scaled}")
    keeping = rendered({"keepImagePreloads": True, "image": {"tag": "9.9"}})
    expect(keeps_image_preloads(pod_of(keeping, AGENT), "9.9"), "the chart with keepImagePreloads")
    digest = "sha256:" + 64 * "a"
    pinned = rendered({"image": {"digest": digest}, "scheduler": {"image": {"tag": "v1.2.3", "digest": digest}}})
    images = {container["image"] for _, _, container in all_containers(pinned)}
    expect(images == {f"sluice:0.1.0@{digest}", f"registry.k8s.io/kube-scheduler:v1.2.3@{digest}"}, f"{images}")

    mounts = pod_of(rendered({"devices": "mounts", "driverDir": "/opt/driver"}), AGENT)
    for container in mounts["containers"]:
        sees = {"name": "driver", "mountPath": "/opt/driver", "readOnly": True} in container["volumeMounts"]
        names = "--nvml=/opt/driver/libnvidia-ml.so.1" in container["args"]
        expect(sees and names and container["securityContext"]["privileged"], f"devices: mounts: {container}")
    expect("--driver=/opt/driver" in mounts["containers"][1]["args"], "devices: mounts: no --driver")

    info = pod_of(rendered({"dialects": ["vgpu-rs"], "gpuInfo": "tflops"}), AGENT)
    expect("--gpu-info=/etc/sluice/gpu-info/gpu-info.yaml" in info["containers"][1]["args"]
           and {"name": "gpu-info", "configMap": {"name": "tflops"}} in info["volumes"], "gpuInfo")
    ways = rendered({"dra": {"enabled": True}, "nri": {"enabled": True}, "kubeletDir": "/data/kubelet"})
    agent = pod_of(ways, AGENT)["containers"][1]
    sees = {mount["mountPath"] for mount in agent["volumeMounts"]}
    expect({"--dra", "--nri"} <= set(agent["args"])
           and {"/var/run/cdi", "/data/kubelet/plugins_registry", "/var/run/nri"} <= sees, f"dra and nri: {agent}")
    expect(ways[("DeviceClass", "gpu.sluice.dev")]["spec"]["selectors"], "dra: no class")
    check_types_of(ways.values(), "the chart with dra")
    check_policy_of_slices(ways[("ValidatingAdmissionPolicy", "sluice-dra")])
    for path, is_refused in [("/data", False), ("/var/run/sluice/allocation", True)]:
        spec = {"containers": [{"name": "a", "volumeMounts": [{"mountPath": path}]}], "resourceClaims": [{"name": "gpu"}]}
        said = refusals(ways[("ValidatingAdmissionPolicy", "sluice-pods")], {"operation": "CREATE"}, None, {"spec": spec})
        expect(bool(said) == is_refused, f"a volume at {path} of a pod with a claim: {said}")
    expect(not [one for one in rendered({}) if one[1] in ("gpu.sluice.dev", "sluice-dra")], "DRA without dra.enabled")
    labels = {"release": "kube-prometheus-stack"}
    told = rendered({"metrics": {"enabled": True, "tlsSecret": "tls", "serviceMonitor": True, "rules": True, "labels": labels}})
    monitors = [("ServiceMonitor", "sluice"), ("PrometheusRule", "sluice"), ("PrometheusRule", "sluice-compatibility")]
    expect({("Service", "sluice-metrics"), *monitors} <= told.keys(), "metrics: no Service, monitor or rules")
    expect(all(labels.items() <= told[one]["metadata"]["labels"].items() for one in monitors), "metrics.labels")
    for (_, name), rules in zip(monitors[1:], ["sluice", "compatibility"]):
        with open(f"deploy/prometheus/{rules}.rules.yml", encoding="utf-8") as file:
            expect(told[("PrometheusRule", name)]["spec"] == yaml.safe_load(file), f"PrometheusRule {name}")
    expect({"--listen=0.0.0.0:9477", "--token-file=/etc/sluice/token/token", "--tls-key=/etc/sluice/tls/tls.key"}
           <= set(pod_of(told, AGENT)["containers"][0]["args"]), "metrics: the daemon does not listen")

    for values in [{"scheduler": {"enabled": False}}, {"dialects": ["vgpu-rs"]}]:
        expect(not [one for one in rendered(values) if "scheduler" in one[1]], f"a scheduler with {values}")
    wanted = read("scheduler-v1.yaml")["extenders"]
    of = {"vgpu-manager": 3, "volcano": 4, "hami": 5}
    for dialects in [list(of), *([one] for one in of)]:
        configured = yaml.safe_load(rendered({"dialects": dialects})[("ConfigMap", "sluice-scheduler")]["data"]["scheduler.yaml"])
        resources = configured["extenders"][0]["managedResources"]
        if dialects == list(of):
            expect(configured["extenders"] == wanted, f"chart and scheduler-v1.yaml differ: {configured}")
        expect(len(resources) == sum(of[one] for one in dialects), f"{dialects}: {resources}")
    for minor, version in [(20, "v1beta1"), (24, "v1beta2"), (25, "v1"), (29, "v1")]:
        older = rendered({}, minor)
        config = older[("ConfigMap", "sluice-scheduler")]["data"]["scheduler.yaml"]
        expect(yaml.safe_load(config)["apiVersion"].endswith(f"/{version}"), f"1.{minor}: {config}")
        image = pod_of(older, SCHEDULER)["containers"][0]["image"]
        expect(image == f"registry.k8s.io/kube-scheduler:v1.{minor}.0", f"1.{minor}: {image}")
        expect(not [one for one in older if "Policy" in one[0]], f"1.{minor} has no such policies")
    dialects = ["vgpu-manager", "volcano", "hami", "vgpu-rs"]
    expect(not [one for one in rendered({}) if "Webhook" in one[0]], "a webhook without webhook.enabled")
    check_webhook(lambda dialect, minor=34, **webhook: rendered(
        {"dialects": [dialect], "webhook": {"enabled": True, **webhook}}, minor))
    check_policy_of_pods({one: rendered({"dialects": [one]})[("ValidatingAdmissionPolicy", "sluice-pods")] for one in dialects})
    check_names(rendered({
        "dialects": ["hami", "vgpu-rs"], "webhook": {"enabled": True},
        "resourceNames": {"nvidia.com/gpu": "example.com/gpu", "tensor-fusion.ai/index": "example.com/index"},
    }))
    notes = text_of(program, {}, [f"{DEPLOY}/chart/templates/NOTES.txt"])
    expect("schedulerName: vgpu-scheduler" in notes, f"{notes}")


WEBHOOKS = [(kind, "sluice-webhook") for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]]


def evaluated(expression, known):
    """What the API server would find, as far as cel-python evaluates as it does."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(re.sub(r"\s+", " ", expression)))
    return program.evaluate(known)


def check_webhook(rendered):
    """Pods that request no GPU never depend on it."""
    own = rendered("vgpu-manager", runtimeClassName="nvidia")
    args = pod_of(own, ("Deployment", "sluice-webhook"))["containers"][0]["args"]
    expect({"--scheduler-name=vgpu-scheduler", "--runtime-class=nvidia", "--namespace=sluice"} <= set(args), f"{args}")
    issued = rendered("hami", certManagerIssuer={"kind": "ClusterIssuer", "name": "ca"})
    expect(("Certificate", "sluice-webhook") in issued and not [one for one in issued if one == ("Role", "sluice-webhook")],
           "cert-manager: no Certificate, or rights of its own")
    for key in WEBHOOKS:
        found = issued[key]["metadata"].get("annotations", {}).get("cert-manager.io/inject-ca-from")
        expect(found == "sluice/sluice-webhook", f"cert-manager: {key} is told of no CA")
        older = rendered("hami", 27)[key]["webhooks"][0]
        expect("matchConditions" not in older and older["objectSelector"], "1.27: every pod depends on the webhook")
    names = {
        "vgpu-manager": ["nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"],
        "volcano": ["volcano.sh/vgpu-number", "volcano.sh/vgpu-memory-percentage"],
        "hami": ["nvidia.com/gpu", "nvidia.com/gpumem"],
        "vgpu-rs": ["tensor-fusion.ai/index", "tensor-fusion.ai/index_a"],
    }
    static = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "1"}}}
    for dialect, own in names.items():
        asking = [{"name": "b", "resources": {"limits": {name: "1", "cpu": "1"}}} for name in own]
        other = [{"name": "b", "resources": {"limits": {name: "1"}}} for one in names.values() if one != own for name in one]
        other += [{"name": "b"}, {"name": "b", "resources": {}}, {"name": "b", "resources": {"limits": {"cpu": "1"}}}]
        plain = {"name": "a", "resources": {}}
        pods = [({"containers": [plain, one]}, True) for one in asking]
        pods += [({"containers": [plain], "initContainers": [one]}, True) for one in asking]
        pods += [({"containers": [plain, one]}, False) for one in other]
        pods = [({"metadata": {"name": "p"}, "spec": spec}, meant) for spec, meant in pods]
        pods += [({**pod, **static}, False) for pod, _ in pods]
        objects = rendered(dialect)
        for key in WEBHOOKS:
            for pod, meant in pods:
                known = {"object": celpy.json_to_cel(pod)}
                conditions = objects[key]["webhooks"][0]["matchConditions"]
                found = all(evaluated(one["expression"], known) for one in conditions)
                expect(found == meant, f"{dialect}: {pod}: the webhook is {'' if found else 'not '}called")


def check_names(objects):
    """Agent, scheduler, extender, webhook and policies go by the cluster's names."""
    wanted = "--resource-names=nvidia.com/gpu=example.com/gpu,tensor-fusion.ai/index=example.com/index"
    for key, at in [(AGENT, 1), (SCHEDULER, 1), (("Deployment", "sluice-webhook"), 0)]:
        expect(wanted in pod_of(objects, key)["containers"][at]["args"], f"{key}: no --resource-names")
    configured = yaml.safe_load(objects[("ConfigMap", "sluice-scheduler")]["data"]["scheduler.yaml"])
    managed = [one["name"] for one in configured["extenders"][0]["managedResources"]]
    expect(managed[:2] == ["example.com/gpu", "nvidia.com/gpucores"] and len(managed) == 5, f"{managed}")
    conditions = [objects[key]["webhooks"][0]["matchConditions"][0] for key in WEBHOOKS]
    conditions += objects[("ValidatingAdmissionPolicy", "sluice-pods")]["spec"]["matchConditions"]
    for name, meant in [("example.com/gpu", True), ("example.com/index", True), ("nvidia.com/gpu", False), ("nvidia.com/gpumem", True)]:
        asking = {"name": "b", "resources": {"limits": {name: "1"}}}
        known = {"object": celpy.json_to_cel({"metadata": {}, "spec": {"containers": [asking]}})}
        for condition in conditions:
            expect(evaluated(condition["expression"], known) == meant, f"{name}: {condition['name']}")


AGENT_USER = "system:serviceaccount:sluice:sluice-node"


def refusals(policy, request, old, new):
    """What the API server would say."""
    spec = policy["spec"]
    known = {"request": request, "oldObject": old, "object": new}
    known = {name: celpy.json_to_cel(value) for name, value in known.items()}
    if not all(evaluated(one["expression"], known) for one in spec["matchConditions"]):
        return []
    variables = {one["name"]: evaluated(one["expression"], known) for one in spec["variables"]}
    known["variables"] = celpy.celtypes.MapType({celpy.celtypes.StringType(name): value for name, value in variables.items()})
    failed = [one for one in spec["validations"] if not evaluated(one["expression"], known)]
    return [str(evaluated(one["messageExpression"], known)) if "messageExpression" in one else one["message"] for one in failed]


def check_policy_of_agents(policy):
    def pod(node, image="a", label="x"):
        spec = {"containers": [{"image": image}], **({"nodeName": node} if node else {})}
        return {"metadata": {"name": "pod", "labels": {"label": label}}, "spec": spec}

    def node(name, taints=()):
        return {"metadata": {"name": name}, "spec": {"taints": list(taints)}}

    own = {"authentication.kubernetes.io/node-name": ["one"]}
    for operation, resource, old, new, extra, user, words in [
        ("UPDATE", "pods", pod("one"), pod("one", label="y"), own, AGENT_USER, None),
        ("UPDATE", "nodes", node("one"), node("one"), own, AGENT_USER, None),
        ("DELETE", "pods", pod("one"), None, own, AGENT_USER, None),
        ("UPDATE", "pods", pod("two"), pod("two"), own, AGENT_USER, "only its own node"),
        ("UPDATE", "pods", pod(""), pod(""), own, AGENT_USER, "only its own node"),
        ("DELETE", "pods", pod("two"), None, own, AGENT_USER, "only its own node"),
        ("UPDATE", "nodes", node("two"), node("two"), own, AGENT_USER, "only its own node"),
        ("UPDATE", "nodes", node("one"), node("one", ["x"]), own, AGENT_USER, "metadata only"),
        ("UPDATE", "pods", pod("one"), pod("one", image="b"), own, AGENT_USER, "metadata only"),
        ("DELETE", "nodes", node("one"), None, own, AGENT_USER, "may not delete nodes"),
        ("UPDATE", "nodes", node("one"), node("one"), {}, AGENT_USER, "an unknown node"),
        ("UPDATE", "nodes", node("one"), node("one"), None, AGENT_USER, "an unknown node"),
        ("UPDATE", "nodes", node("two"), node("two", ["x"]), {}, "system:node:two", None),
    ]:
        who = {"username": user, **({"extra": extra} if extra is not None else {})}
        request = {"operation": operation, "resource": {"resource": resource}, "name": old["metadata"]["name"], "userInfo": who}
        said = refusals(policy, request, old, new)
        expect(bool(said) == bool(words) and (not words or words in said[0]), f"{operation} of {old} by {who}: {said}")


def check_policy_of_slices(policy):
    own = {"authentication.kubernetes.io/node-name": ["one"]}
    for node, driver, extra, user, accepted in [
        ("one", "gpu.sluice.dev", own, AGENT_USER, True), ("two", "gpu.sluice.dev", own, AGENT_USER, False),
        ("one", "gpu.nvidia.com", own, AGENT_USER, False), ("one", "gpu.sluice.dev", {}, AGENT_USER, False),
        ("two", "gpu.nvidia.com", {}, "system:node:two", True),
    ]:
        request = {"operation": "CREATE", "userInfo": {"username": user, "extra": extra}}
        said = refusals(policy, request, None, {"spec": {"nodeName": node, "driver": driver}})
        expect(bool(said) != accepted, f"a slice of {driver} on {node} by {user}: {said}")


def check_policy_of_pods(policies):
    """Those of the chart with each dialect, by what its pods request."""
    for dialect, resource in [
        ("vgpu-manager", "nvidia.com/vgpu-number"), ("volcano", "volcano.sh/vgpu-number"), ("hami", "nvidia.com/gpu"),
        ("vgpu-rs", "tensor-fusion.ai/index_a"),
    ]:
        for path, is_refused in [
            ("/data", False), ("/etc", False), ("/srv/sluice", False), ("/run/sluice-data", False),
            ("/run/sluice", True), ("/var/run/sluice/allocation/", True), ("/etc/ld.so.preload", True), ("/run//sluice", True),
            ("/run/x/../sluice", True), ("/run/./sluice", True),
        ]:
            mounting = {"name": "a", "volumeMounts": [{"mountPath": path}]}
            asking = {"name": "b", "resources": {"limits": {resource: "1"}}}
            pods = [{"containers": [{**mounting, **asking}]}, {"containers": [asking], "initContainers": [mounting]},
                    {"containers": [{"name": "c"}], "initContainers": [{**mounting, **asking}]}]
            others = [{"containers": [{**mounting, **one}]}
                      for one in [{}, {"resources": {}}, {"resources": {"limits": {"cpu": "1"}}}]]
            for spec, expected in [*((one, is_refused) for one in pods), *((one, False) for one in others)]:
                said = refusals(policies[dialect], {"operation": "CREATE"}, None, {"spec": spec})
                expect(bool(said) == expected, f"{dialect}: {spec}: {said}")


def check_samples():
    for path in sorted(glob.glob(f"{DEPLOY}/samples/*.yaml")):
        with open(path, encoding="utf-8") as file:
            for one in yaml.safe_load_all(file):
                known = one["kind"] in ("Pod", "ResourceClaimTemplate")
                expect(known and one["metadata"]["namespace"] == "default", f"{path}: {one['kind']}")


def check_types_of(objects, what):
    """Each field is one of Kubernetes' own. What operators define has no schema there."""
    for one in objects:
        try:
            kubernetes_validate.validate(one, "1.34", strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{what}: {one['kind']}: {error.message}")


def check_types(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            check_types_of(yaml.safe_load_all(file), path)


check_schema()
with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "render")
    subprocess.run(["go", "build", "-o", program, "scripts/kubernetes/render.go"], check=True)
    check_chart(program)
with open(BASE, encoding="utf-8") as file:
    base = documents(file.read())
kubectl = shutil.which("kubectl")
if kubectl:
    check_overlays(kubectl, base)
else:
    print("SKIPPED: kubectl kustomize (kubectl is missing)")
check_policy_of_agents(base[("ValidatingAdmissionPolicy", "sluice-node")])
check_samples()
check_types([BASE, f"{DEPLOY}/base/namespace.yaml", *sorted(glob.glob(f"{DEPLOY}/samples/*.yaml"))])
for one in wrong:
    print(one)
sys.exit(1 if wrong else 0)
