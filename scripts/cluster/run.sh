#!/usr/bin/env bash
# A cluster of one node in namespaces of its own: run.sh PROGRAMS PARTS FOLDER, started by scripts/xtask. Prints what
# was seen, ends with 0 if all of it is right. Every process ends with the namespace.
set -euo pipefail
programs=$1 parts=$2 folder=$3
mkdir -p "$folder"/{kubelet,state}
resource=nvidia.com/vgpu-number
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh

mount -t tmpfs none /var/log
# shellcheck source=scripts/cluster/kubelet.sh
. scripts/cluster/kubelet.sh
kubeconfig sluice >"$folder/kubeconfig"
start_api_server AlwaysAllow --disable-admission-plugins ServiceAccount
echo "API server: $(ask "$api/version" | jq -r .gitVersion)"
start controllers "$programs/kube-controller-manager" --kubeconfig "$folder/kubeconfig" --leader-elect=false \
    --cert-dir "$folder/certificates"
start scheduler "$programs/kube-scheduler" --kubeconfig "$folder/kubeconfig" --leader-elect=false \
    --cert-dir "$folder/certificates"

# The profile of VGPU-Manager's pods with the extender, as deploy/ has it. Those who are ours check the server's certificate.
sed "s|\"insecure-skip-tls-verify\": true|\"certificate-authority\": \"$folder/certificates/apiserver.crt\"|" \
    "$folder/kubeconfig" >"$folder/kubeconfig-checked"
start extender "$parts/hypervisor" scheduler --kubeconfig "$folder/kubeconfig-checked"
sed 's/leaderElect: true/leaderElect: false/' deploy/kubernetes/scheduler-v1beta1.yaml >"$folder/scheduler.yaml"
cat >>"$folder/scheduler.yaml" <<EOF
clientConnection: {kubeconfig: "$folder/kubeconfig"}
healthzBindAddress: 127.0.0.1:10351
metricsBindAddress: 127.0.0.1:10351
EOF
start vgpu-scheduler "$programs/kube-scheduler" --config "$folder/scheduler.yaml" --secure-port 10359 \
    --cert-dir "$folder/certificates"
until_so 30 'the extender has heard of nodes and pods' curl -sf http://127.0.0.1:3456/readyz

start runtime "$parts/small-runtime" --socket "$folder/runtime.sock" --state "$folder/state" --images "$folder/images" \
    --cdi-dir "$folder/cdi"
until_so 20 'the runtime listens' test -S "$folder/runtime.sock"
start_kubelet "unix://$folder/runtime.sock"
until_so 60 'the kubelet takes plugins' test -S /var/lib/kubelet/device-plugins/kubelet.sock
ln -s "$parts/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
mkdir -p "$folder"/{library,daemon,image,shared}
cp "$parts"/{libcuda_limiter.so,libadd_path.so} "$folder/library"
cp "$parts/tenant" "$folder/image"
cp "$parts/libfake_cuda.so" "$folder/image/libcuda.so.1"
export SLUICE_FAKE_NODE="$folder/shared/fake-node"
start daemon "$parts/hypervisor" daemon --socket "$folder/daemon/hypervisor.sock" --nvml "$folder/libnvidia-ml.so.1"
# In memory, as on a node: the daemon reads pages of containers nowhere else.
mkdir -p "$folder/allocations"
mount -t tmpfs none "$folder/allocations"
start agent "$parts/hypervisor" node --nvml "$folder/libnvidia-ml.so.1" --library "$folder/library" \
    --daemon "$folder/daemon/hypervisor.sock" --allocations "$folder/allocations" --device-split 4 \
    --feature-gates CorePlugin=true,MemoryPlugin=true --node-name node --kubeconfig "$folder/kubeconfig-checked" \
    --keep-image-preloads --cdi-dir "$folder/cdi" --hook "$parts/hypervisor"

allocatable() {
    ask "$api/api/v1/nodes/node" | jq -r ".status.allocatable[\"$resource\"]"
}
offers() {
    [ "$(allocatable)" -gt 0 ]
}
until_so 90 'the node offers places' offers
places=$(allocatable)
echo "allocatable: $resource $places"
[ $((places % 4)) -eq 0 ] || die "$places places are no multiple of the split"

# pod NAME PLACES COMMAND
pod() {
    jq -n --arg name "$1" --arg places "$2" --arg command "$3" --arg resource "$resource" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name},
        spec: {restartPolicy: "Never", automountServiceAccountToken: false, enableServiceLinks: false,
            containers: [{name: $name, image: "none", command: ["sh", "-c", $command],
                resources: {limits: {($resource): $places}}}]}}' | post /api/v1/namespaces/default/pods >/dev/null
}
phase() {
    ask "$api/api/v1/namespaces/default/pods/$1" | jq -r .status.phase
}
is_in() {
    [ "$(phase "$1")" = "$2" ]
}
is_gone() {
    ! ask "$api/api/v1/namespaces/default/pods/$1"
}
# shellcheck disable=SC2016 # the container's shell expands it
pod first 1 'echo "gpu $NVIDIA_VISIBLE_DEVICES"; echo "key $SLUICE_ALLOCATION"; cat /run/sluice/allocation/allocation.json
    if touch /run/sluice/allocation/file 2>/dev/null; then echo writable; fi'
until_so 90 'the pod has run' is_in first Succeeded
cat "$folder/state/first.out"
gpu=$(sed -n 's/^gpu //p' "$folder/state/first.out")
key=$(sed -n 's/^key //p' "$folder/state/first.out")
[[ $gpu == GPU-5a1ce000-* ]] || die "no GPU is named in the container"
[ "$(sed -n 's/^{/{/p' "$folder/state/first.out" | jq -r '.gpus[0]')" = "$gpu" ] || die 'the folder is of another GPU'
[ "${#key}" -eq 64 ] || die 'the allocation has no name'
! grep -q writable "$folder/state/first.out" || die "the container can write to its allocation's folder"

until_so 30 'the folder goes when its pod has ended' test ! -e "$folder/allocations/$key"

# The example of VGPU-Manager's own README, as it is there. A program that measures what it gets runs inside, beside it.
annotation() {
    ask "$api/api/v1/$1" | jq -r ".metadata.annotations[\"nvidia.com/$2\"] // \"\""
}
object=namespaces/default/pods/gpu-pod
devices=$(annotation nodes/node node-device-register)
jq -e --arg gpu "$gpu" 'any(.[]; .uuid == $gpu and .core == 100 and .number == 4 and .healthy)' <<<"$devices" >/dev/null ||
    die "the node has registered $devices"
kubectl --kubeconfig "$folder/kubeconfig" apply -f deploy/kubernetes/samples/vgpu-manager.yaml
until_so 90 'the example pod runs' is_in gpu-pod Running
until_so 30 'its devices are told' sh -c "[ \"\$(curl -sfk -H 'Authorization: Bearer sluice' '$api/api/v1/$object' |
    jq -r '.metadata.labels[\"nvidia.com/assigned-phase\"]')\" = succeed ]"
claimed=$(annotation "$object" pre-allocated)
echo "pre-allocated: $claimed"
[[ $claimed =~ ^default\[[0-9]+_GPU-5a1ce000-[0-9a-f-]+_10_1024\]$ ]] || die "the claim is $claimed"
[ "$(annotation "$object" real-allocated)" = "$claimed" ] || die 'its devices are not those of the claim'
[ "$(annotation "$object" predicate-node)" = node ] || die 'its node is not named'
sleeper=$(pgrep -f '^sleep 9999999$') || die 'the example pod has no process'
inside="/proc/$sleeper/root/tmp"
cp "$folder"/image/* "$inside"
measure() {
    nsenter --target "$sleeper" --mount --root /usr/bin/env -i LD_LIBRARY_PATH=/tmp SLUICE_FAKE_NODE=/tmp/fake-node \
        /tmp/tenant "$@"
}
mib=$(measure mem --api alloc --chunk 16MiB --cap 8GiB | jq '.meminfo_total / 1048576')
kernels=$(measure dense --kernel-us 1000 --seconds 5 | jq .kernels)
[ "$mib" = 1024 ] || die "the example pod has $mib MiB"
# Of 5000 kernels that take 1 ms each, 10 %.
if [ "$kernels" -lt 350 ] || [ "$kernels" -gt 750 ]; then
    die "$kernels kernels are not 10 % of 5000"
fi
echo "the example pod: $mib MiB, $kernels of 5000 kernels"

# Pods of 60 cores: each GPU has room for one, however many places and cores the node has. The last one waits.
most_of_a_gpu() {
    jq -n --arg name "$1" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name},
        spec: {schedulerName: "vgpu-scheduler", restartPolicy: "Never", automountServiceAccountToken: false,
            enableServiceLinks: false, terminationGracePeriodSeconds: 0,
            containers: [{name: "main", image: "none", command: ["sleep", "1000"], resources: {limits: {
                "nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-cores": 60, "nvidia.com/vgpu-memory": 512}}}]}}' |
        post /api/v1/namespaces/default/pods >/dev/null
}
gpus=$((places / 4))
for number in $(seq "$gpus"); do
    most_of_a_gpu "most-$number"
done
for number in $(seq "$gpus"); do
    until_so 90 'a pod of 60 cores runs' is_in "most-$number" Running
done
apart=$(for number in $(seq "$gpus"); do
    annotation "namespaces/default/pods/most-$number" pre-allocated | grep -o 'GPU-[0-9a-f-]*'
done | sort -u | wc -l)
[ "$apart" -eq "$gpus" ] || die "$gpus pods of 60 cores are on $apart GPUs"
most_of_a_gpu late
until_so 90 'the scheduler says why the last one waits' sh -c "curl -sfk -H 'Authorization: Bearer sluice' '$api/api/v1/namespaces/default/pods/late' |
    jq -e '.status.conditions[]? | select(.reason == \"Unschedulable\") | .message | select(contains(\"with too few cores left\"))'"
ask "$api/api/v1/namespaces/default/pods/late" | jq -r '.status.conditions[] | select(.reason == "Unschedulable") | .message'
kubectl --kubeconfig "$folder/kubeconfig" delete --wait=false pod late gpu-pod $(seq -f 'most-%g' "$gpus")
for name in late gpu-pod $(seq -f 'most-%g' "$gpus"); do
    until_so 60 'a deleted pod goes' is_gone "$name"
done

# An image that preloads a library of its own: its processes have both, and their limits, also when it has restarted.
image="$folder/images/preloading:latest"
mkdir -p "$image"/{etc,opt}
echo '/opt/libtrace.so' >"$image/etc/ld.so.preload"
cc -shared -fPIC -x c - -o "$image/opt/libtrace.so" <<'EOF'
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { fputs("the image's own is loaded\n", stderr); }
EOF
jq -n '{apiVersion: "v1", kind: "Pod", metadata: {name: "preloading"},
    spec: {automountServiceAccountToken: false, enableServiceLinks: false, terminationGracePeriodSeconds: 0,
        containers: [{name: "preloading", image: "preloading:latest", command: ["sleep", "9999998"], resources: {limits: {
            "nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-cores": 10, "nvidia.com/vgpu-memory": 1024}}}]}}' |
    post /api/v1/namespaces/default/pods >/dev/null
preloading() {
    sleeper=$(pgrep -f '^sleep 9999998$') && [ "$sleeper" != "${1:-}" ]
}
until_so 90 'a pod runs whose image preloads a library' preloading
for time in first second; do
    inside="/proc/$sleeper/root/tmp"
    cp "$folder"/image/* "$inside"
    mib=$(measure mem --api alloc --chunk 16MiB --cap 8GiB 2>"$folder/said" | jq '.meminfo_total / 1048576') ||
        die "the pod whose image preloads a library measures nothing: $(cat "$folder/said")"
    [ "$mib" = 1024 ] || die "the pod whose image preloads a library has $mib MiB"
    grep -q "the image's own is loaded" "$folder/said" || die "what the image preloads is not loaded: $(cat "$folder/said")"
    echo "an image that preloads a library, its container's $time time: $mib MiB; $(cat "/proc/$sleeper/root/run/sluice/allocation/image-preloads.txt")"
    [ "$time" = first ] || break
    before=$sleeper
    kill -9 "$before"
    until_so 90 'its container has restarted' preloading "$before"
done
kubectl --kubeconfig "$folder/kubeconfig" delete --wait=false pod preloading
until_so 60 'a deleted pod goes' is_gone preloading

# More than there is.
pod greedy "$((places + 1))" true
until_so 60 'the scheduler refuses' sh -c "curl -sfk -H 'Authorization: Bearer sluice' '$api/api/v1/namespaces/default/pods/greedy' \
    | jq -e '.status.conditions[]? | select(.reason == \"Unschedulable\")'"
echo "greedy: $(phase greedy)"

# shellcheck disable=SC2016 # the container's shell expands it
pod living 1 'echo "key $SLUICE_ALLOCATION"; sleep 1000'
until_so 90 'a pod runs' is_in living Running
living=$(sed -n 's/^key //p' "$folder/state/living.out")

# The kubelet restarts: the plugin is there again, and pods get GPUs.
kill -9 "$kubelet"
wait "$kubelet" 2>/dev/null || true
start_kubelet "unix://$folder/runtime.sock"
# Each resource registers by itself.
until_so 60 'the plugin is registered again' sh -c "[ \$(grep -c 'registered resource=.nvidia.com/vgpu-number' '$log/agent') -ge 2 ]"
# The API server's word is from before the restart, and the kubelet refuses pods until it has the list.
sleep 2
until_so 90 'the node offers places again' offers
# shellcheck disable=SC2016 # the container's shell expands it
pod second 1 'echo "gpu $NVIDIA_VISIBLE_DEVICES"'
until_so 90 'a pod runs after the restart' is_in second Succeeded
grep -q '^gpu GPU-5a1ce000-' "$folder/state/second.out" || die 'no GPU after the restart'
echo 'after a restart of the kubelet: a pod has run'
[ -f "$folder/allocations/$living/sluice-session.json" ] || die "the folder of a pod that runs is gone"
