root=$1
# The first of the host's users that are the container's own, or nothing.
users=$2
# Made when all is mounted, and then a line is waited for; or nothing.
ready=$3
count=$4
shift 4
chmod 755 "$root"
chown "${users:-0}:${users:-0}" "$root"
mount --bind "$root" "$root"
# Users of a namespace have no way to it from the root.
cd "$root"
as() {
    if [ -n "$users" ]; then
        setpriv --reuid="$users" --regid="$users" --clear-groups "$@"
    else
        "$@"
    fi
}
for folder in usr bin sbin lib lib64; do
    if [ -L "/$folder" ]; then
        cp -P "/$folder" "$folder"
    elif [ -d "/$folder" ]; then
        mkdir "$folder"
        mount --bind "/$folder" "$folder"
    fi
done
as mkdir -p proc dev tmp etc run
mount --bind /proc proc
for file in null zero urandom; do
    as touch "dev/$file"
    mount --bind "/dev/$file" "dev/$file"
done
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then
        as mkdir -p ".$2"
    else
        as mkdir -p "$(dirname ".$2")"
        [ -e ".$2" ] || as touch ".$2"
    fi
    mount --bind "$1" ".$2"
    [ "$3" = rw ] || mount -o remount,bind,ro ".$2"
    shift 3
    count=$((count - 1))
done
if [ -n "$ready" ]; then
    : >"$ready"
    read -r _
    exec </dev/null
fi
[ -n "$users" ] || exec chroot . /usr/bin/env -i "$@"
# Its root may do in its namespace what root may, and is nobody outside.
own=$(readlink /proc/$$/ns/user)
{
    while [ "$(readlink /proc/$$/ns/user)" = "$own" ]; do sleep 0.01; done
    echo "0 $users 65536" >/proc/$$/gid_map
    echo "0 $users 65536" >/proc/$$/uid_map
} &
exec unshare --user --keep-caps sh -ec 'while [ -z "$(cat /proc/self/uid_map)" ]; do sleep 0.01; done
    exec setpriv --reuid=0 --regid=0 --clear-groups --inh-caps=-all --ambient-caps=-all chroot . /usr/bin/env -i "$@"' sh "$@"
