# Makes the programs of a server runnable in the folder $1, out of the packages ($3 ..) of the Debian release $2: with the libraries
# that they are linked to, each by its own loader. Nothing is installed, and the packages come from wherever this machine's apt has its own.
set -eu
mkdir -p "$1"
to=$(cd "$1" && pwd)
release=$2
shift 2
packages=$*
# The last thing that is made.
[ -e "$to/made-of-$release" ] && exit 0
command -v apt-get >/dev/null || { echo "there is no apt-get" >&2; exit 1; }
source=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^#' | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ') || true
[ -n "$source" ] || { echo "apt has no Debian among its sources" >&2; exit 1; }
rm -rf "$to"/*
mkdir -p "$to/apt/lists/partial" "$to/apt/cache/archives/partial" "$to/debs"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source $release main" >"$to/apt/sources.list"
apt() {
    program=$1
    shift
    "$program" -o Dir::Etc::sourcelist="$to/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$to/apt/lists" -o Dir::Cache="$to/apt/cache" -o Acquire::Languages=none \
        -o Acquire::Retries=1 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@"
}
apt apt-get update -qq
# Beside these packages, the libraries that they are linked to, down to the C library. Scripts in Perl are not needed.
libraries=$(apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances $packages 2>/dev/null |
    grep -E '^(lib|zlib)' | grep -vE '^lib(perl|gdbm|db5|.*-perl$)' | sort -u)
(cd "$to/debs" && apt apt-get download -qq $packages $libraries)
for package in "$to"/debs/*.deb; do
    dpkg-deb -x "$package" "$to/root"
done
rm -rf "$to/debs" "$to/apt"
cd "$to/root"
# Each program finds the root from its own place, so that the folder may be moved.
loader=$(find . -name 'ld-linux-*.so.*' | head -n 1 | sed 's/^\./$root/')
paths=$(find . -name '*.so*' -printf '%h\n' | sort -u | sed 's/^\./$root/' | paste -sd:)
# Each program stays where it was, as a script: programs look for each other, and for their data, from where they are.
find usr/bin usr/sbin usr/lib/postgresql -type f -perm -u+x 2>/dev/null | while read -r program; do
    [ "$(head -c 4 "$program" | tail -c 3)" = ELF ] || continue
    mv "$program" "$program.elf"
    cat >"$program" <<END
#!/bin/sh
# A program of several names is linked to.
root=\$(readlink -f "\$0")
root=\${root%"/$program"}
exec "$loader" --library-path "$paths" --argv0 "\$0" "\$root/$program.elf" "\$@"
END
    chmod +x "$program"
done
touch "$to/made-of-$release"
