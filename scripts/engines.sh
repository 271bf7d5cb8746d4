# Sourced by test.sh: Docker, Podman and systemd themselves, with the simulated GPU in the place of the driver.
# shellcheck shell=bash disable=SC2154 # variables and functions of test.sh

engines="$target/tools/engines"
[[ $engines == /* ]] || engines="$PWD/$engines"
engine_packages=(docker.io containerd runc podman conmon libgpgme11 libassuan0 libsubid4
    golang-github-containers-common golang-github-containers-image systemd-container)

# Their packages are unpacked, not installed: that would start a service.
get_engines() {
    [ -x "$engines/usr/sbin/dockerd" ] && [ -x "$engines/usr/bin/podman" ] &&
        [ -x "$engines/usr/bin/systemd-nspawn" ] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    printf '%s== getting Docker and Podman%s\n' "$bold" "$plain"
    rm -rf "$engines"
    mkdir -p "$engines/packages"
    (
        cd "$engines/packages"
        apt-get -qq download "${engine_packages[@]}" ||
            { apt-get -qq update && apt-get -qq download "${engine_packages[@]}"; } || exit 1
        for package in *.deb; do dpkg-deb -x "$package" .. || exit 1; done
    ) >/dev/null 2>&1 || return 1
    rm -rf "$engines/packages"
}

# What reads Compose files: Docker's in Python, whose own list of requirements is too old to be built, and Podman's.
get_compose() {
    [ -x "$engines/compose/bin/podman-compose" ] && [ -x "$engines/compose/bin/docker-compose" ] && return
    command -v python3 >/dev/null || return 1
    (
        python3 -m venv "$engines/compose" &&
            "$engines/compose/bin/pip" -q install 'podman-compose==1.3.0' 'docker==6.1.3' 'requests==2.31.0' dockerpty docopt \
                'jsonschema<4' texttable 'websocket-client<1' python-dotenv distro setuptools &&
            "$engines/compose/bin/pip" -q install --no-deps 'docker-compose==1.29.2'
    ) >/dev/null 2>&1
}

engines_tier() {
    local engine
    if [ "$(id -u)" -ne 0 ] || ! can_have_namespaces; then
        skip 'Docker, Podman and systemd' 'they need root, and namespaces may not be made here'
        return
    fi
    if ! get_engines; then
        skip 'Docker, Podman and systemd' "they come from Debian's packages ${engine_packages[*]}"
        return
    fi
    get_compose || skip 'Compose files' 'docker-compose and podman-compose come from PyPI'
    for engine in docker podman; do
        check "containers of $engine" in_namespaces scripts/engines/run.sh "$engine" "$engines"
    done
    if [ -x /lib/systemd/systemd ]; then
        check 'the units under systemd' in_namespaces scripts/engines/systemd.sh "$engines"
    else
        skip 'the units under systemd' 'it is not on this machine'
    fi
}
