#!/usr/bin/env bash
# The hook that keeps what images preload, and limits by NRI, under containerd and a real kubelet: containerd.sh PROGRAMS
# TOOLS PARTS FOLDER, started by scripts/xtask. TOOLS has containerd and runc. Prints what was seen, ends with 0 if all of it is right.
set -euo pipefail
programs=$1 tools=$2 parts=$3 folder=$4
mkdir -p "$folder"/{kubelet,containerd}
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount -t tmpfs none /var/log
# shellcheck source=scripts/cluster/api-server.sh
. scripts/cluster/api-server.sh
# shellcheck source=scripts/cluster/kubelet.sh
. scripts/cluster/kubelet.sh
PATH="$tools/usr/bin:$PATH"
kubeconfig sluice >"$folder/kubeconfig"
start_api_server AlwaysAllow --disable-admission-plugins ServiceAccount

cat >"$folder/containerd.toml" <<EOF
version = 2
root = "$folder/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "sluice.test/preloading:1"
enable_cdi = true
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.nri.v1.nri"]
disable = false
EOF
mkdir /run/containerd
start containerd containerd --config "$folder/containerd.toml"
ctr() {
    command ctr --address /run/containerd/containerd.sock --namespace k8s.io "$@"
}
until_so 30 'containerd answers' ctr version
echo "containerd: $(containerd --version | cut -d ' ' -f 3), $(runc --version | head -1)"

# An image without a download: some programs, what they need, and a library that the image preloads.
image="$folder/image"
mkdir -p "$image"/{etc,opt,tmp,proc,sys,dev,run,usr/bin,usr/lib,usr/lib64}
for at in lib lib64 bin; do [ ! -L "/$at" ] || cp -P "/$at" "$image/$at"; done
cc -shared -fPIC -x c - -o "$image/opt/libtrace.so" <<'EOF'
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { fputs("the image's own is loaded\n", stderr); }
EOF
for file in "$(command -v bash)" "$(command -v sleep)" "$(command -v cat)" "$(command -v env)" "$parts/tenant"; do
    cp -L "$file" "$image/usr/bin"
    for library in $(ldd "$file" "$parts/libcuda_limiter.so" "$parts/libfake_cuda.so" | grep -o '/[^ ]*\.so[^ ]*' | grep -v "^$parts"); do
        mkdir -p "$image${library%/*}"
        cp -Lu "$library" "$image$library"
    done
done
cp "$parts/libfake_cuda.so" "$image/opt/libcuda.so.1"
strip -g "$image"/usr/bin/tenant "$image/opt/libcuda.so.1"
echo '/opt/libtrace.so' >"$image/etc/ld.so.preload"
ln -s /run "$image/link"
layer="$folder/archive/layer.tar"
mkdir "$folder/archive"
tar -C "$image" -cf "$layer" .
jq -n --arg id "sha256:$(sha256sum "$layer" | cut -d ' ' -f 1)" '{architecture: "amd64", os: "linux",
    config: {Env: ["PATH=/usr/bin:/bin"], Cmd: ["sleep", "9999997"]}, rootfs: {type: "layers", diff_ids: [$id]}}' >"$folder/archive/config.json"
echo '[{"Config": "config.json", "RepoTags": ["sluice.test/preloading:1"], "Layers": ["layer.tar"]}]' >"$folder/archive/manifest.json"
tar -C "$folder/archive" -c . | ctr image import - >"$log/import"

start_kubelet unix:///run/containerd/containerd.sock
until_so 60 'the kubelet takes plugins' test -S /var/lib/kubelet/device-plugins/kubelet.sock
ln -s "$parts/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
mkdir -p "$folder"/library /run/sluice
cp "$parts"/{libcuda_limiter.so,libadd_path.so} "$folder/library"
start agent "$parts/hypervisor" node --nvml "$folder/libnvidia-ml.so.1" --library "$folder/library" --keep-image-preloads \
    --nri --feature-gates CorePlugin=true,MemoryPlugin=true --hook "$parts/hypervisor"
offers() {
    ask "$api/api/v1/nodes/node" | jq -e '.status.allocatable["nvidia.com/vgpu-memory"] // "0" | tonumber > 0'
}
until_so 90 'the node offers memory' offers

until_so 30 'containerd calls the agent' grep -q 'the container runtime calls' "$log/agent"

# pod NAME COMMAND: it has its node's network, since there is no other.
pod() {
    jq -n --arg name "$1" --arg command "$2" '{apiVersion: "v1", kind: "Pod", metadata: {name: $name},
        spec: {nodeName: "node", hostNetwork: true, automountServiceAccountToken: false, enableServiceLinks: false,
            terminationGracePeriodSeconds: 0, containers: [{name: $name, image: "sluice.test/preloading:1",
                imagePullPolicy: "Never", command: ["bash", "-c", $command], resources: {limits: {
                    "nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-cores": 10, "nvidia.com/vgpu-memory": 1024}}}]}}' |
        post /api/v1/namespaces/default/pods >/dev/null
}
# Its container ends and is started again.
# shellcheck disable=SC2016 # the container's shell expands it
pod preloading 'cat /etc/ld.so.preload /run/sluice/allocation/image-preloads.txt
    env -i LD_LIBRARY_PATH=/opt SLUICE_FAKE_NODE=/tmp/fake-node tenant mem --api alloc --chunk 16MiB --cap 8GiB'
for time in 0 1; do
    until_so 90 'its program has run' sh -c "grep meminfo_total /var/log/pods/default_preloading_*/preloading/$time.log"
    lines=$(cut -d ' ' -f 4- /var/log/pods/default_preloading_*/preloading/$time.log)
    [ "$(grep -A 2 '^/run/sluice/library/libcuda_limiter.so$' <<<"$lines")" = '/run/sluice/library/libcuda_limiter.so
/run/sluice/library/libadd_path.so
/opt/libtrace.so' ] || die "its list of preloads: $lines"
    grep -q "the image's own is loaded" <<<"$lines" || die "the image's own is not loaded: $lines"
    mib=$(grep '^{' <<<"$lines" | jq '.meminfo_total / 1048576')
    [ "$mib" = 1024 ] || die "the container has $mib MiB: $lines"
    echo "container $time: $mib MiB; $(grep '^of the image' <<<"$lines")"
done

# As KAI's binder leaves a pod: a GPU in a variable, by a ConfigMap, and no resource.
# kai NAME ANNOTATIONS MOUNTS COMMAND [RESOURCES]
kai() {
    jq -n --arg name "$1" --argjson annotations "$2" --argjson mounts "$3" --arg command "$4" \
        --argjson resources "${5:-null}" '{apiVersion: "v1", kind: "Pod",
        metadata: {name: $name, annotations: $annotations}, spec: {nodeName: "node", hostNetwork: true,
            automountServiceAccountToken: false, enableServiceLinks: false, restartPolicy: "Never",
            terminationGracePeriodSeconds: 0, volumes: [{name: "own", emptyDir: {}}], containers: [{name: $name,
                image: "sluice.test/preloading:1", imagePullPolicy: "Never", command: ["bash", "-c", $command], volumeMounts: $mounts, resources: $resources,
                env: [{name: "NVIDIA_VISIBLE_DEVICES", value: "GPU-5a1ce000-0000-4000-8000-000000000000"},
                    {name: "LD_LIBRARY_PATH", value: "/opt"}, {name: "SLUICE_FAKE_NODE", value: "/tmp/fake-node"}]}]}}' |
        post /api/v1/namespaces/default/pods >/dev/null
}
said() {
    cut -d ' ' -f 4- /var/log/pods/default_"$1"_*/"$1"/0.log
}
kai by-memory '{"gpu-memory": "1024"}' '[]' 'tenant mem --api alloc --chunk 16MiB --cap 8GiB'
until_so 90 'its program has run' sh -c 'grep meminfo_total /var/log/pods/default_by-memory_*/by-memory/0.log'
mib=$(said by-memory | grep '^{' | jq '.meminfo_total / 1048576')
[ "$mib" = 1024 ] || die "gpu-memory: 1024 is $mib MiB: $(said by-memory)"
kai by-fraction '{"gpu-fraction": "0.3"}' '[]' 'tenant dense --kernel-us 1000 --seconds 5'
until_so 90 'its program has run' sh -c 'grep kernels /var/log/pods/default_by-fraction_*/by-fraction/0.log'
kernels=$(said by-fraction | grep '^{' | jq .kernels)
# Of 5000 kernels that take 1 ms each, 30 %. A busy machine gives less.
if [ "$kernels" -lt 500 ] || [ "$kernels" -gt 1750 ]; then
    die "$kernels kernels are not 30 % of 5000: $(said by-fraction)"
fi
# Volumes over the limits, by the name as it is written and by a link of the image, also of a device plugin's container.
kai covered '{"gpu-fraction": "0.1"}' '[{"name": "own", "mountPath": "/run/sluice/allocation"}]' 'sleep 9'
kai linked '{}' '[{"name": "own", "mountPath": "/link/sluice/allocation"}]' 'sleep 9' \
    '{"limits": {"nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-cores": 10, "nvidia.com/vgpu-memory": 1024}}'
refused() {
    ask "$api/api/v1/namespaces/default/pods/$1" |
        jq -e --arg why "$2" '.status.containerStatuses[0].state // {} | tostring | contains($why)'
}
until_so 60 'a volume over its limits is refused' refused covered 'would take its limits away'
until_so 60 'a volume over its limits by a link is refused' refused linked 'a volume lies over /run/sluice/allocation'
echo "pods of KAI: $mib MiB, $kernels of 5000 kernels"
