#!/usr/bin/env bash
# An API server with RBAC, and the agent with just the service account of deploy/kubernetes: rights.sh PROGRAMS PARTS FOLDER,
# started by scripts/xtask. Prints what was seen, ends with 0 if all of it is right.
set -euo pipefail
programs=$1 parts=$2 folder=$3
mkdir -p "$folder"
# The agent's folders are where they are on a node, and of this namespace alone.
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount -t tmpfs none /dev/shm
library=/var/lib/sluice/library/0.1.0
hook=/var/lib/sluice/hook/0.1.0/hypervisor
mkdir -p /var/lib/kubelet/{device-plugins,pod-resources} /run/sluice
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh

# object KIND NAME: of what is installed.
object() {
    python3 -c 'import json, sys, yaml
for path in sys.argv[3:]:
    for one in yaml.safe_load_all(open(path)):
        if [one["kind"], one["metadata"]["name"]] == sys.argv[1:3]:
            json.dump(one, sys.stdout)' "$@" deploy/kubernetes/base/{namespace,sluice}.yaml
}

start_api_server RBAC
until_so 60 'the roles that it makes itself are there' ask "$api/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user"

roles=/apis/rbac.authorization.k8s.io/v1
object Namespace sluice | post /api/v1/namespaces >/dev/null
object ServiceAccount sluice-node | post /api/v1/namespaces/sluice/serviceaccounts >/dev/null
token() {
    echo '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}' |
        post /api/v1/namespaces/sluice/serviceaccounts/sluice-node/token | jq -r .status.token
}
kubeconfig "$(token)" >"$folder/kubeconfig"
echo '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}' | post /api/v1/nodes >/dev/null

ln -s "$parts/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
mkdir "$folder/parts"
cp "$parts"/{libcuda_limiter.so,libadd_path.so} "$folder/parts"
"$parts/hypervisor" node --library "$folder/parts" --install "$library" --hook "$hook"
export SLUICE_FAKE_NODE="$folder/fake-node"
node() {
    "$parts/hypervisor" node --nvml "$folder/libnvidia-ml.so.1" --library "$library" --node-name node \
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
object ClusterRole sluice-node | post "$roles/clusterroles" >/dev/null
object ClusterRoleBinding sluice-node | post "$roles/clusterrolebindings" >/dev/null
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
# Of all dialects, so that all annotations are there that are to go.
start daemon "$parts/hypervisor" daemon --socket /run/sluice/hypervisor.sock --state /var/lib/sluice/daemon \
    --nvml "$folder/libnvidia-ml.so.1"
daemon=$!
start agent node --dialects vgpu-manager,volcano,hami --memory-factor 1024 --feature-gates CorePlugin=true,MemoryPlugin=true \
    --keep-image-preloads --hook "$hook"
registered() {
    ask "$api/api/v1/nodes/node" | jq -e '.metadata.annotations["nvidia.com/node-device-register"]'
}
agent=$!
until_so 30 "the node's devices are registered" registered
sleep 2
if grep -i forbidden "$log/agent"; then
    die 'the agent asks for more'
fi
echo "the agent has registered the node's devices"

# The commands of docs/kubernetes.md take away all of it. There are no controllers here, which would wait.
kubeconfig sluice >"$folder/kubeconfig-admin"
KUBECONFIG=$folder/kubeconfig-admin
export KUBECONFIG
kubectl apply -k deploy/kubernetes/before-1.30
objects() {
    kubectl get namespaces,clusterroles,clusterrolebindings --output name | grep -i sluice || true
    kubectl get serviceaccounts,roles,rolebindings,configmaps,daemonsets,deployments,pods --all-namespaces --output name |
        grep -i sluice || true
}
ours() {
    ask "$api/api/v1/nodes/node" | jq -r '[.metadata | (.annotations // {}), (.labels // {}) | keys[]
        | select(test("^(nvidia[.]com|volcano[.]sh|hami[.]io|sluice[.]dev)/"))] | sort | join(" ")'
}
traces() {
    find /run /var/lib /dev/shm -name '*sluice*' | sort
}
[ "$(objects | wc -l)" -eq 15 ] || die "before: $(objects)"
until_so 30 'each dialect is registered' sh -c "[ \"\$(curl -sfk -H 'Authorization: Bearer sluice' '$api/api/v1/nodes/node' |
    jq '.metadata.annotations | length')\" -eq 6 ]"
echo "annotations of the node: $(ours)"
[ "$(jq -r '.devices[].containerEdits.hooks[].path' /var/run/cdi/sluice.dev-preload.json)" = "$hook" ] || die 'the hook is not offered'
sockets=$(find /run/sluice -name '*.sock' | wc -l)
[ "$sockets" -eq 1 ] || die "the daemon has $sockets sockets"
# As the kubelet ends the pods of a DaemonSet that has gone. One is killed, so that its sockets stay.
ls /var/lib/kubelet/device-plugins
kill -9 "$(pgrep -P "$agent" -x hypervisor)"
kill "$daemon"
wait "$agent" "$daemon" 2>/dev/null || true
# shellcheck disable=SC2016 # a fence of Markdown
commands=$(sed -n '/^Uninstall/,/^```$/p' docs/kubernetes.md | sed '1,/^```sh$/d; /^```$/d')
echo "$commands"
[ "$(wc -l <<<"$commands")" -ge 4 ] || die 'docs/kubernetes.md has no commands'
commands=${commands//kubectl delete/kubectl delete --wait=false}
sh -ec "${commands//kubernetes\/base/kubernetes/before-1.30}"
# Its namespace goes when a controller has seen that it is empty.
[ "$(objects | grep -v '^namespace/sluice$')" = '' ] || die "what is left: $(objects)"
[ "$(kubectl get namespace sluice --output 'jsonpath={.status.phase}')" = Terminating ] || die 'the namespace stays'
[ "$(ours)" = '' ] || die "the node still has $(ours)"
[ "$(traces)" = '' ] || die "what is left: $(traces)"
echo 'after the uninstall nothing is left'
