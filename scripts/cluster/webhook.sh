#!/usr/bin/env bash
# An API server with RBAC, and the webhook of the chart with just its service account: webhook.sh PROGRAMS PARTS FOLDER,
# started by scripts/xtask. Prints what was seen, ends with 0 if all of it is right.
set -euo pipefail
programs=$1 parts=$2 folder=$3
mkdir -p "$folder"
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh

# There is no controller that would create service accounts for pods.
start_api_server RBAC --disable-admission-plugins ServiceAccount
until_so 60 'the roles that it makes itself are there' ask "$api/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user"
kubeconfig sluice >"$folder/kubeconfig-admin"
export KUBECONFIG="$folder/kubeconfig-admin"

# The chart, as it is for an API server of this version, which knows no match conditions: a label selects pods.
chart=deploy/kubernetes/chart
python3 - "$chart" >"$folder/values.json" <<'END'
import json, sys, yaml
values = yaml.safe_load(open(f"{sys.argv[1]}/values.yaml"))
values["webhook"]["enabled"] = True
values["dialects"] = ["vgpu-manager", "hami"]
release = {"Namespace": "sluice", "Name": "sluice", "Service": "kubectl"}
version = {"KubeVersion": {"Minor": "20"}}
print(json.dumps({"Values": values, "Chart": {"AppVersion": "0", "Name": "sluice"}, "Release": release, "Capabilities": version}))
END
go build -o "$folder/render" scripts/kubernetes/render.go
"$folder/render" "$folder/values.json" "$chart/templates/_helpers.tpl" "$chart/templates/webhook.yaml" >"$folder/webhook.yaml"
kubectl create namespace sluice >/dev/null
kubectl create -f "$folder/webhook.yaml"

# The Service's address is this machine's: there is no kube-proxy.
service=$(kubectl get service sluice-webhook --namespace sluice --output 'jsonpath={.spec.clusterIP}')
ip address add "$service/32" dev lo
kubeconfig "$(echo '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}' |
    post /api/v1/namespaces/sluice/serviceaccounts/sluice-webhook/token | jq -r .status.token)" >"$folder/kubeconfig"
webhook() {
    exec "$parts/hypervisor" webhook --listen "$service:443" --kubeconfig "$folder/kubeconfig" --namespace sluice \
        --dialects vgpu-manager,hami --scheduler-name vgpu-scheduler --runtime-class nvidia
}
is_ready() {
    curl -sfk "https://$service/readyz"
}

# pod NAME LABELS LIMITS
pod() {
    jq -n --arg name "$1" --argjson labels "$2" --argjson limits "$3" '{apiVersion: "v1", kind: "Pod",
        metadata: {name: $name, labels: $labels}, spec: {containers: [{name: "main", image: "x", resources: {limits: $limits}}]}}' |
        kubectl create --output json -f - 2>&1
}
gpu='{"sluice.dev/gpu-pod": "true"}'
echo '{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}' |
    post /apis/node.k8s.io/v1/runtimeclasses >/dev/null

# Without it: others start, and pods with GPUs are refused by the webhook's name.
pod before '{}' '{"cpu": "1"}' >/dev/null || die 'a pod without GPUs depends on the webhook'
said=$(pod early "$gpu" '{"nvidia.com/vgpu-cores": "10"}') && die 'a pod with GPUs passes the webhook by'
case $said in *'gpu-pod-defaults.sluice.dev'*) echo "refused: $said" ;; *) die "$said" ;; esac

start webhook webhook
serving=$!
until_so 20 'the webhook is ready' is_ready
accepted() {
    pod "$1" "$gpu" '{"nvidia.com/vgpu-cores": "10"}' >"$folder/$1"
}
until_so 20 'the API server trusts it' accepted complete
found=$(jq -c '[.spec.schedulerName, .spec.runtimeClassName, .spec.containers[0].resources]' "$folder/complete")
wanted='["vgpu-scheduler","nvidia",{"limits":{"nvidia.com/vgpu-cores":"10","nvidia.com/vgpu-number":"1"},"requests":{"nvidia.com/vgpu-cores":"10","nvidia.com/vgpu-number":"1"}}]'
[ "$found" = "$wanted" ] || die "completed as $found"
echo "completed: $found"
said=$(pod much "$gpu" '{"nvidia.com/vgpu-cores": "101"}') && die 'more cores than a GPU has are accepted'
case $said in *'denied the request: container main: nvidia.com/vgpu-cores: 101 cores '*'; expected 1 to 100'*) echo "refused: $said" ;; *) die "$said" ;; esac
if grep -iE 'forbidden|cannot refresh|no certificate' "$log/webhook"; then
    die 'the webhook asks for more than its role permits'
fi

# Again without it, and with another one, which has the same certificate.
kill "$serving"
wait "$serving"
pod meanwhile '{}' '{"cpu": "1"}' >/dev/null || die 'a pod without GPUs depends on the webhook'
said=$(pod late "$gpu" '{"nvidia.com/gpumem": "1000"}') && die 'a pod with GPUs passes the webhook by'
start webhook-again webhook
until_so 20 'another webhook is ready' is_ready
accepted again || die "$(cat "$folder/again")"
grep -q 'issues a new certificate' "$log/webhook-again" && die 'another webhook has a certificate of its own'
echo 'after a restart its certificate is the same'
