"""Checks deploy/kubernetes without a cluster: check.py. Ends with 77 if something that it needs is missing."""

import copy
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"{missing.name} is missing: apt-get install python3-yaml python3-jsonschema")
    sys.exit(77)

DEPLOY = "deploy/kubernetes"
TEMPLATES = sorted(glob.glob(f"{DEPLOY}/chart/templates/*.yaml"))
wrong = []


def expect(holds, what):
    if not holds:
        wrong.append(what)


def documents(text):
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def rendered(folder, program, values):
    """The chart's objects with these values over its own."""
    def over(base, other):
        for key, value in other.items():
            both = isinstance(value, dict) and isinstance(base.get(key), dict) and base[key]
            base[key] = over(base[key], value) if both else value
        return base

    merged = over(copy.deepcopy(VALUES), values)
    jsonschema.validate(merged, SCHEMA)
    chart = {"AppVersion": str(CHART["appVersion"]), "Name": CHART["name"]}
    release = {"Namespace": "sluice", "Name": "sluice"}
    path = os.path.join(folder, "values.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"Values": merged, "Chart": chart, "Release": release}, file)
    run = subprocess.run([program, path, *TEMPLATES], capture_output=True, text=True, check=False)
    expect(run.returncode == 0, f"the chart with {values}: {run.stderr}")
    expect("<no value>" not in run.stdout, f"the chart with {values}: a value is missing")
    return documents(run.stdout)


def read(path):
    with open(f"{DEPLOY}/{path}", encoding="utf-8") as file:
        return yaml.safe_load(file)


VALUES, CHART = read("chart/values.yaml"), read("chart/Chart.yaml")
with open(f"{DEPLOY}/chart/values.schema.json", encoding="utf-8") as schema:
    SCHEMA = json.load(schema)

jsonschema.Draft7Validator.check_schema(SCHEMA)
jsonschema.validate(VALUES, SCHEMA)


def described(schema, place):
    for name, one in schema.get("properties", {}).items():
        expect(one.get("description"), f"{place}{name} is not described")
        described(one, f"{place}{name}.")


described(SCHEMA, "")
expect(set(SCHEMA["properties"]) == set(VALUES), "a value is without a schema, or has no default")
for bad in [
    {"dialects": ["other"]}, {"dialects": []}, {"devices": "all"}, {"deviceSplit": 0}, {"coresScaling": "half"},
    {"unknown": 1}, {"featureGates": {"Reschedule": "yes"}}, {"image": {"tag": "1"}}, {"kubeletDir": "var"},
    {"scheduler": {"enabled": True, "name": "s", "image": ""}},
]:
    try:
        jsonschema.validate({**VALUES, **bad}, SCHEMA)
        wrong.append(f"the schema accepts {bad}")
    except jsonschema.ValidationError:
        pass

base = {}
for file in read("base/kustomization.yaml")["resources"]:
    with open(f"{DEPLOY}/base/{file}", encoding="utf-8") as text:
        base.update(documents(text.read()))
pod = base[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]
by_labels = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
expect({"nvidia.com/gpu.present", "sluice.dev/gpu"} <= {one["matchExpressions"][0]["key"] for one in by_labels}, "no GPU nodes are selected")
volumes = {volume["name"] for volume in pod["volumes"]}
for container in pod["initContainers"] + pod["containers"]:
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    expect(mounts <= volumes, f"{container['name']}: a mount without a volume")
    rights = container["securityContext"]
    expect(not rights.get("privileged"), f"{container['name']} is privileged")
    expect(rights["capabilities"]["drop"] == ["ALL"], f"{container['name']} keeps capabilities")



def keeps_image_preloads(spec, version):
    """The hook's program is put where the agent names it, and the agent sees the node's folder of CDI files."""
    put, agent = spec["initContainers"][0], spec["containers"][1]
    hook = f"--hook=/var/lib/sluice/hook/{version}/hypervisor"
    sees = {"name": "cdi", "mountPath": "/var/run/cdi"} in agent["volumeMounts"]
    nodes = {"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}} in spec["volumes"]
    return hook in put["args"] and {hook, "--keep-image-preloads"} <= set(agent["args"]) and sees and nodes


kubectl = shutil.which("kubectl")
if kubectl:
    def kustomized(folder):
        run = subprocess.run([kubectl, "kustomize", f"{DEPLOY}/{folder}"], capture_output=True, text=True, check=False)
        expect(run.returncode == 0, f"kubectl kustomize {folder}: {run.stderr}")
        return documents(run.stdout)

    expect(kustomized("base").keys() == base.keys(), "kustomize makes other objects")
    verbs = kustomized("reschedule")[("ClusterRole", "sluice-node")]["rules"][0]["verbs"]
    expect(verbs == ["get", "list", "watch", "patch", "delete"], f"reschedule: {verbs}")
    keeping = kustomized("image-preloads")[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]
    expect(keeps_image_preloads(keeping, "0.1.0"), f"image-preloads: {keeping}")
else:
    print("SKIPPED: kubectl kustomize (kubectl is missing)")

go = shutil.which("go")
if go:
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "render")
        subprocess.run([go, "build", "-o", program, "scripts/kubernetes/render.go"], check=True)
        chart = rendered(folder, program, {})
        expect(chart.keys() == base.keys() - {("Namespace", "sluice")}, f"the chart has {sorted(chart)}")
        for key in [("ClusterRole", "sluice-node"), ("ClusterRoleBinding", "sluice-node"), ("ServiceAccount", "sluice-node")]:
            expect(chart.get(key) == base[key], f"chart and base differ: {key}")
        own = chart[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]
        for name in ["volumes", "hostPID", "serviceAccountName", "tolerations", "nodeSelector", "affinity"]:
            expect(own.get(name) == pod.get(name), f"chart and base differ: {name}")
        for ours, theirs in zip(own["initContainers"] + own["containers"], pod["initContainers"] + pod["containers"]):
            for name in ["name", "command", "env", "securityContext", "resources", "volumeMounts"]:
                expect(ours.get(name) == theirs.get(name), f"chart and base differ: {theirs['name']}: {name}")
            expect(set(theirs["args"]) <= set(ours["args"]), f"chart and base differ: {theirs['name']}: {ours['args']}")
        gates = rendered(folder, program, {"featureGates": {"CorePlugin": True, "Reschedule": True}, "dialects": ["hami", "volcano"]})
        verbs = gates[("ClusterRole", "sluice-node")]["rules"][0]["verbs"]
        expect("delete" in verbs, "the chart grants no delete with Reschedule")
        args = gates[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]["containers"][1]["args"]
        expect("--feature-gates=CorePlugin=true,Reschedule=true" in args and "--dialects=hami,volcano" in args, f"{args}")
        keeping = rendered(folder, program, {"keepImagePreloads": True, "image": {"tag": "9.9"}})
        keeping = keeping[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]
        expect(keeps_image_preloads(keeping, "9.9"), f"the chart with keepImagePreloads: {keeping}")
        chosen = rendered(folder, program, {"nodeSelector": {"gpus": "yes"}})
        chosen = chosen[("DaemonSet", "sluice-node")]["spec"]["template"]["spec"]
        expect(chosen["nodeSelector"] == {"gpus": "yes"} and "affinity" not in chosen, "the chart keeps its affinity")
        wanted = read("scheduler-v1.yaml")["extenders"]
        of = {"vgpu-manager": 3, "volcano": 4, "hami": 5}
        for dialects in [list(of), *([one] for one in of)]:
            values = {"dialects": dialects, "scheduler": {"enabled": True, "image": "kube-scheduler:v1"}}
            with_scheduler = rendered(folder, program, values)
            expect(("Deployment", "sluice-scheduler") in with_scheduler, "no scheduler")
            configured = yaml.safe_load(with_scheduler[("ConfigMap", "sluice-scheduler")]["data"]["scheduler.yaml"])
            resources = configured["extenders"][0]["managedResources"]
            if dialects == list(of):
                expect(configured["extenders"] == wanted, f"chart and scheduler-v1.yaml differ: {configured}")
            expect(len(resources) == sum(of[one] for one in dialects), f"{dialects}: {resources}")
else:
    print("SKIPPED: the chart's templates (go is missing)")

for one in wrong:
    print(one)
sys.exit(1 if wrong else 0)
