# Sourced by test.sh: a real control plane and a real kubelet, with a small container runtime of our own.
# shellcheck shell=bash disable=SC2154 # variables and functions of test.sh

# The oldest version that is promised (docs/kubernetes.md), from the source package that Debian 12 has.
kubernetes_suite=bookworm
kubernetes_programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)

# Builds the programs once, in a folder whose name says of which package they are. Sets $kubernetes.
get_kubernetes() {
    local tools work found
    # From the root, since some steps change to other folders.
    tools=$(realpath -m "$target/tools/kubernetes")
    command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || return 1
    if found=$(compgen -G "$tools/built-*/kubelet" | head -1) && [ -n "$found" ]; then
        kubernetes=${found%/*}
        return
    fi
    for program in go rsync jq make etcd curl ip openssl; do
        command -v "$program" >/dev/null ||
            apt_get golang-go rsync jq make etcd-server curl iproute2 openssl || return 1
    done
    work="$tools/work"
    rm -rf "$work"
    mkdir -p "$work"
    printf '%s== getting the source of Kubernetes%s\n' "$bold" "$plain"
    debian_source "$tools/apt" deb-src "$kubernetes_suite" main update >/dev/null 2>&1 || true
    (cd "$work" && debian_source "$tools/apt" deb-src "$kubernetes_suite" main source --download-only kubernetes >/dev/null 2>&1) || return 1
    # The vendored reflect2 1.0.1 reads the maps of Go 1.18 and later wrongly: API servers end by SIGSEGV. Debian has 1.0.2.
    (cd "$work" && apt-get -qq download golang-github-modern-go-reflect2-dev &&
        dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2) >/dev/null 2>&1 || return 1
    found=$(compgen -G "$work/kubernetes_*.dsc") || return 1
    kubernetes="$tools/built-$(basename "$found" .dsc | tr -c 'a-zA-Z0-9.\n' -)-$(sha256sum "$found" | cut -c 1-16)"
    check "Kubernetes' programs, which take some minutes once" build_kubernetes "$work" "$kubernetes"
    rm -rf "$work"
    [ -x "$kubernetes/kubelet" ]
}

# build_kubernetes WORK TO
build_kubernetes() (
    cd "$1" &&
        tar -xf kubernetes_*.orig.tar.gz --strip-components 1 &&
        rm vendor/github.com/modern-go/reflect2/*.go &&
        cp reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.go vendor/github.com/modern-go/reflect2 &&
        mkdir -p .go/src/k8s.io &&
        ln -s ../../.. .go/src/k8s.io/kubernetes &&
        export GOPATH="$PWD/.go" GOCACHE="$PWD/.cache" CGO_ENABLED=0 KUBE_GIT_VERSION=v1.20.2 &&
        make WHAT="${kubernetes_programs[*]/#/cmd/}" || return 1
    rm -rf "$2.draft"
    mkdir "$2.draft" || return 1
    for program in "${kubernetes_programs[@]}"; do
        cp "_output/bin/$program" "$2.draft" || return 1
    done
    mv "$2.draft" "$2"
)

# containerd of the first version that follows CDI, which Debian 13 has, and runc. Sets $containerd.
get_containerd() {
    local runc tools
    tools=$(realpath -m "$target/tools/containerd")
    containerd="$tools/root"
    [ ! -x "$containerd/usr/bin/containerd" ] || [ ! -x "$containerd/usr/bin/runc" ] || return 0
    get_runc || return 1
    runc=$(PATH="$target/tools/runc/usr/sbin:/usr/sbin:$PATH" command -v runc) || return 1
    cargo xtask debian-package trixie "$(dpkg --print-architecture)" "$tools" containerd >/dev/null 2>&1 || return 1
    cp "$runc" "$containerd/usr/bin" && "$containerd/usr/bin/containerd" --version >/dev/null
}

cluster_tier() {
    if ! get_kubernetes; then
        skip 'cluster' "it needs root and Debian's source package kubernetes of $kubernetes_suite, which is built with Go"
        return
    fi
    if can_have_namespaces; then
        check 'cluster: a pod gets a GPU' in_namespaces scripts/cluster/run.sh "$kubernetes"
        if get_containerd; then
            check 'cluster: containerd runs the hook' in_namespaces scripts/cluster/containerd.sh "$kubernetes" "$containerd"
        else
            skip 'cluster: containerd runs the hook' "it needs containerd of Debian 13, and runc"
        fi
        if python3 -c 'import yaml' 2>/dev/null; then
            check 'cluster: just the rights that are deployed' in_namespaces scripts/cluster/rights.sh "$kubernetes"
        else
            skip 'cluster: just the rights that are deployed' 'it needs apt-get install python3-yaml (as root)'
        fi
    else
        skip 'cluster' 'no namespaces may be made here'
    fi
}
