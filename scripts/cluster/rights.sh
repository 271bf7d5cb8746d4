#!/usr/bin/env bash
# An API server with RBAC, and the agent with just the service account of deploy/kubernetes: rights.sh PROGRAMS PARTS FOLDER,
# started by scripts/cluster.sh. Prints what was seen, ends with 0 if all of it is right.
set -euo pipefail
programs=$1 parts=$2 folder=$3
mkdir -p "$folder"/{kubelet/device-plugins,kubelet/pod-resources,library,daemon,allocations}
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh

# json FILE: of one object.
json() {
    python3 -c 'import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)' "$1"
}

start_api_server RBAC
until_so 60 'the roles that it makes itself are there' ask "$api/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user"

base=deploy/kubernetes/base
roles=/apis/rbac.authorization.k8s.io/v1
json "$base/namespace.yaml" | post /api/v1/namespaces >/dev/null
json "$base/account.yaml" | post /api/v1/namespaces/sluice/serviceaccounts >/dev/null
token() {
    echo '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}' |
        post /api/v1/namespaces/sluice/serviceaccounts/sluice-node/token | jq -r .status.token
}
kubeconfig "$(token)" >"$folder/kubeconfig"
echo '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}' | post /api/v1/nodes >/dev/null

ln -s "$parts/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
cp "$parts"/{libcuda_limiter.so,libadd_path.so} "$folder/library"
export SLUICE_FAKE_NODE="$folder/fake-node"
node() {
    "$parts/hypervisor" node --nvml "$folder/libnvidia-ml.so.1" --library "$folder/library" --node-name node \
        --daemon "$folder/daemon/hypervisor.sock" --allocations "$folder/allocations" --kubelet-dir "$folder/kubelet" \
        --kubeconfig "$folder/kubeconfig" "$@"
}
# finding CHECK OPTION...: state and words of one.
finding() {
    local check=$1
    shift
    # There is no kubelet here: that is one of its findings.
    { node --check --json "$@" || true; } | jq -r --arg check "$check" '.findings[] | select(.check == $check) | .state + " " + .found'
}

# Before the role is bound nothing is permitted.
found=$(finding permissions)
all='broken not permitted: get pods, list pods, watch pods, patch pods, get nodes, patch nodes, create events, patch events'
[ "$found" = "$all" ] || die "without the role: $found"
json "$base/role.yaml" | post "$roles/clusterroles" >/dev/null
json "$base/binding.yaml" | post "$roles/clusterrolebindings" >/dev/null
until_so 20 'the role holds' sh -c "curl -sfk -H 'Authorization: Bearer $(token)' $api/api/v1/nodes/node"
found=$(finding permissions)
[ "$found" = 'ok all 8 that are needed' ] || die "with the role: $found"
found=$(finding permissions --feature-gates Reschedule=true)
[ "$found" = 'broken not permitted: delete pods' ] || die "with the gate Reschedule: $found"
found=$(finding node)
[ "$found" = 'ok node' ] || die "$found"
echo "permissions: $(finding permissions)"

# And nothing more than these.
rules=$(echo '{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "kube-system"}}' |
    curl -sfk -H "Authorization: Bearer $(token)" -H 'Content-Type: application/json' -X POST --data-binary @- \
        "$api/apis/authorization.k8s.io/v1/selfsubjectrulesreviews" |
    jq -r '[.status.resourceRules[] | select(.apiGroups != ["authorization.k8s.io"]) | .resources[] as $resource | .verbs[] | . + " " + $resource]
        | unique | join(", ")')
[ "$rules" = 'create events, get nodes, get pods, list pods, patch events, patch nodes, patch pods, watch pods' ] ||
    die "the account may: $rules"
echo "the account may: $rules"

# It watches pods and registers the node's devices by them. Nothing that it asks for is refused.
mount -t tmpfs none "$folder/allocations"
start agent node --feature-gates CorePlugin=true,MemoryPlugin=true
registered() {
    ask "$api/api/v1/nodes/node" | jq -e '.metadata.annotations["nvidia.com/node-device-register"]'
}
until_so 30 "the node's devices are registered" registered
sleep 2
if grep -i forbidden "$log/agent"; then
    die 'the agent asks for more'
fi
echo "the agent has registered the node's devices"
