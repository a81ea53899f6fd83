# Makes $1/valkey-server: a Valkey with `SET .. IFEQ`, out of the packages of the next Debian release, run by its own loader. Nothing is
# installed, and the packages come from wherever this machine's apt has its own.
set -eu
mkdir -p "$1"
to=$(cd "$1" && pwd)
if "$to/valkey-server" --version >/dev/null 2>&1; then
    exit 0
fi
command -v apt-get >/dev/null || { echo "there is no apt-get" >&2; exit 1; }
source=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^#' | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ') || true
[ -n "$source" ] || { echo "apt has no Debian among its sources" >&2; exit 1; }
rm -rf "$to/debs" "$to/root"
mkdir -p "$to/apt/lists/partial" "$to/apt/cache/archives/partial" "$to/debs"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source trixie main" >"$to/apt/sources.list"
apt() {
    program=$1
    shift
    "$program" -o Dir::Etc::sourcelist="$to/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$to/apt/lists" -o Dir::Cache="$to/apt/cache" -o Acquire::Languages=none \
        -o Acquire::Retries=1 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@"
}
apt apt-get update -qq
# The server, and the libraries that it is linked to, down to the C library.
names=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances valkey-server | grep -E '^(lib|valkey)' | sort -u)
(cd "$to/debs" && apt apt-get download -qq $names)
for package in "$to"/debs/*.deb; do
    dpkg-deb -x "$package" "$to/root"
done
loader=$(find "$to/root" -name 'ld-linux-*.so.*' | head -n 1)
program=$(find "$to/root/usr/bin" -type f \( -name valkey-check-rdb -o -name valkey-server \) | head -n 1)
libraries=$(find "$to/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
# The program is several, and finds out by its name which it is.
cat >"$to/valkey-server" <<END
#!/bin/bash
exec -a valkey-server "$loader" --library-path "$libraries" --argv0 valkey-server "$program" "\$@"
END
chmod +x "$to/valkey-server"
"$to/valkey-server" --version
