# Sourced by the scripts that start a kubelet in namespaces of their own, after api-server.sh. They set $programs and $folder.
# shellcheck shell=bash disable=SC2154,SC2034 # variables of those, and for those

# The kubelet's folders have fixed places, and it writes sysctls that are the machine's.
mkdir -p /var/lib/kubelet
mount --bind "$folder/kubelet" /var/lib/kubelet
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$name" ] || continue
    cat "/proc/sys/$name" >"$folder/sysctl"
    cp "$folder/sysctl" "$folder/sysctl-${name//\//-}"
    mount --bind "$folder/sysctl-${name//\//-}" "/proc/sys/$name"
done
cat >"$folder/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
failSwapOn: false
evictionHard: {}
EOF

# start_kubelet RUNTIME: by the runtime's socket. Sets $kubelet, its process.
start_kubelet() {
    start kubelet "$programs/kubelet" --config "$folder/kubelet.yaml" --kubeconfig "$folder/kubeconfig" \
        --container-runtime remote --container-runtime-endpoint "$1" \
        --hostname-override node --node-ip "$address" --cert-dir "$folder/certificates"
    kubelet=$!
}
