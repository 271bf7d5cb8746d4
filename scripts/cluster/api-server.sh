# Sourced by the scripts that check Sluice at a real API server, in namespaces of their own. They set $programs and $folder.
# shellcheck shell=bash disable=SC2154,SC2034 # variables of those, and for those
who=cluster
log="$folder/log"
mkdir -p "$log" "$folder"/{etcd,certificates}
address=10.77.0.1
api="https://$address:6443"
# shellcheck source=scripts/inside-namespaces.sh
. scripts/inside-namespaces.sh

ask() {
    curl -sfk --max-time 20 -H 'Authorization: Bearer sluice' -H 'Content-Type: application/json' "$@"
}

post() {
    ask -X POST --data-binary @- "$api$1"
}

# kubeconfig TOKEN
kubeconfig() {
    jq -n --arg server "$api" --arg token "$1" '{apiVersion: "v1", kind: "Config", "current-context": "x",
        clusters: [{name: "c", cluster: {server: $server, "insecure-skip-tls-verify": true}}],
        users: [{name: "u", user: {token: $token}}], contexts: [{name: "x", context: {cluster: "c", user: "u"}}]}'
}

# start_api_server MODE OPTION...: with this mode of authorization.
start_api_server() {
    local mode=$1
    shift
    ip link set lo up
    ip address add "$address/32" dev lo
    ip route add default dev lo 2>/dev/null || true
    openssl genrsa -out "$folder/account.key" 2048 2>/dev/null
    echo 'sluice,admin,1,system:masters' >"$folder/tokens"
    start etcd etcd --data-dir "$folder/etcd" --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    start apiserver "$programs/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --advertise-address "$address" \
        --cert-dir "$folder/certificates" --token-auth-file "$folder/tokens" --authorization-mode "$mode" \
        --service-account-issuer https://sluice --service-account-key-file "$folder/account.key" \
        --service-account-signing-key-file "$folder/account.key" --service-cluster-ip-range 10.78.0.0/24 "$@"
    until_so 120 'the API server is ready' ask "$api/readyz"
}
