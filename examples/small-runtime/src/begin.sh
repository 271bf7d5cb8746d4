root=$1
count=$2
shift 2
mount -t tmpfs none "$root"
for folder in usr bin sbin lib lib64; do
    if [ -L "/$folder" ]; then
        cp -P "/$folder" "$root/$folder"
    elif [ -d "/$folder" ]; then
        mkdir "$root/$folder"
        mount --bind "/$folder" "$root/$folder"
    fi
done
mkdir "$root/proc" "$root/dev" "$root/tmp" "$root/etc" "$root/run"
mount --bind /proc "$root/proc"
for file in null zero urandom; do
    : >"$root/dev/$file"
    mount --bind "/dev/$file" "$root/dev/$file"
done
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then
        mkdir -p "$root$2"
    else
        mkdir -p "$(dirname "$root$2")"
        : >"$root$2"
    fi
    mount --bind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
    count=$((count - 1))
done
exec chroot "$root" /usr/bin/env -i "$@"
