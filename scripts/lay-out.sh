#!/usr/bin/env bash
# Lays out what was built as it is installed. See usage below.
set -euo pipefail
shopt -s inherit_errexit

usage() {
    cat <<'END'
Usage: scripts/lay-out.sh FROM TREE [DOCUMENTS-BY]

Puts what was built, which is in FROM, into the new folder TREE as it is below /usr or another prefix: programs
into bin, all other parts into lib/sluice, units, manual pages, completions and documents where systems look for
them. This is the one place that says what belongs to an installation.

Manual pages and completions are written by the programs themselves: those of DOCUMENTS-BY, if those of FROM do
not run here.
END
}

fail() {
    printf 'lay-out.sh: %s\n' "$*" >&2
    exit 1
}

[ $# -eq 2 ] || [ $# -eq 3 ] || {
    usage >&2
    exit 2
}
from=$1 tree=$2 by=${3:-$1}
here=$(dirname "$0")/..

programs=(sluice hypervisor)
parts=(libcuda_limiter.so libadd_path.so libfake_cuda.so libfake_nvml.so fake-nvidia-smi tenant)

for part in "${programs[@]}" "${parts[@]}"; do
    [ -f "$from/$part" ] || fail "$from/$part is missing: build it with cargo build --release --workspace"
done
mkdir -p -- "$tree"/{bin,lib/sluice,lib/systemd/system,share/man}
for program in "${programs[@]}"; do
    install -m 755 -- "$from/$program" "$tree/bin"
done
for part in "${parts[@]}"; do
    install -m 755 -- "$from/$part" "$tree/lib/sluice"
done
install -m 755 -- "$here/deploy/packages/before-removal" "$tree/lib/sluice"
install -m 644 -- "$here"/deploy/systemd/* "$tree/lib/systemd/system"

# Who reads them: bash, zsh and fish, each in its own place.
completions=(bash bash-completion/completions/% zsh zsh/site-functions/_% fish fish/vendor_completions.d/%.fish)
for program in "${programs[@]}"; do
    "$by/$program" man "$tree/share/man/man1" || fail "$by/$program does not run here, so there are no manual pages"
    for ((index = 0; index < ${#completions[@]}; index += 2)); do
        file=$tree/share/${completions[index + 1]/\%/$program}
        mkdir -p -- "$(dirname "$file")"
        "$by/$program" completions "${completions[index]}" >"$file"
    done
done

documents=$tree/share/doc/sluice
mkdir -p -- "$documents/examples"
install -m 644 -- "$here"/{LICENSE,README.md,CHANGELOG.md} "$documents"
cp -R -- "$here/docs" "$documents/docs"
# Results and pictures are ten times as large as the rest.
rm -rf -- "$documents"/docs/{measurements,pictures}
install -m 644 -- "$here"/deploy/{config/config.toml,containers/compose.yaml,grafana/sluice.json} \
    "$here"/deploy/prometheus/{sluice,compatibility}.rules.yml "$documents/examples"
find "$tree" -type d -exec chmod 755 {} +
find "$tree/share/man" -type f -exec gzip -9 --no-name {} +
find "$tree/share" -type f -exec chmod 644 {} +
