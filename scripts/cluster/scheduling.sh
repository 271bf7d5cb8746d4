#!/usr/bin/env bash
# kube-scheduler with the extender, two of each, at a real API server and without kubelets: scheduling.sh PROGRAMS PARTS FOLDER
# [ROUNDS], started by scripts/xtask. 500 rounds are the figures of docs/specification.md. Ends with 0 if all is right.
set -euo pipefail
programs=$1 parts=$2 folder=$3 rounds=${4:-20}
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh

kubeconfig sluice >"$folder/kubeconfig"
# Nobody takes the taint from nodes that have no kubelet.
start_api_server AlwaysAllow --disable-admission-plugins ServiceAccount,TaintNodesByCondition
sed "s|\"insecure-skip-tls-verify\": true|\"certificate-authority\": \"$folder/certificates/apiserver.crt\"|" \
    "$folder/kubeconfig" >"$folder/kubeconfig-checked"

# replica NUMBER: a kube-scheduler and its extender, as a pod of the deployment has them. Without agents no pod is told that it
# has its GPUs, so none waits for that.
replica() {
    local port=$((3455 + $1))
    start "extender-$1" "$parts/hypervisor" scheduler --kubeconfig "$folder/kubeconfig-checked" \
        --lease kube-system/sluice-extender --listen "127.0.0.1:$port" --feature-gates SerialBindNode=false
    echo $! >"$folder/extender-$1.pid"
    sed "s/127.0.0.1:3456/127.0.0.1:$port/" deploy/kubernetes/scheduler-v1beta1.yaml >"$folder/scheduler-$1.yaml"
    cat >>"$folder/scheduler-$1.yaml" <<END
clientConnection: {kubeconfig: "$folder/kubeconfig"}
healthzBindAddress: 127.0.0.1:$((10350 + $1))
metricsBindAddress: 127.0.0.1:$((10350 + $1))
END
    until_so 30 'the extender has heard of nodes and pods' curl -sf "http://127.0.0.1:$port/readyz"
    start "scheduler-$1" "$programs/kube-scheduler" --config "$folder/scheduler-$1.yaml" --secure-port "$((10358 + $1))" \
        --cert-dir "$folder/certificates"
    echo $! >"$folder/scheduler-$1.pid"
}
replica 1
leads() {
    ask "$api/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/vgpu-scheduler" | jq -e '.spec.holderIdentity != ""'
}
until_so 30 'the first kube-scheduler leads' leads
replica 2
python3 scripts/cluster/scheduling.py "$api" "$rounds" "$(<"$folder/scheduler-1.pid")" "$(<"$folder/extender-1.pid")"
