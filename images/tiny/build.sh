#!/usr/bin/env bash
# Builds codehub/tiny:latest in a second: a static busybox with sh, httpd and tar. For tests only.
# Its command serves the home on $PORT (8080). Needs busybox-static and a Docker engine.
set -euo pipefail

image="${IMAGE:-codehub/tiny:latest}"
if [ -z "${FORCE:-}" ] && docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image is there already"
    exit 0
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/etc" "$work/tmp" "$work/home/coder" "$work/srv"
cp "$(command -v busybox)" "$work/bin/busybox"
for applet in sh httpd tar cat ls sleep id mkdir rm echo kill nc ps wget env sync touch ln chmod dd head stat find true false printf; do
    ln -s busybox "$work/bin/$applet"
done
printf 'root:x:0:0::/:/bin/sh\ncoder:x:1000:1000::/home/coder:/bin/sh\n' >"$work/etc/passwd"
printf 'root:x:0:\ncoder:x:1000:\n' >"$work/etc/group"
cat >"$work/bin/codehub-ide" <<'SH'
#!/bin/sh
echo "serving $HOME on ${PORT:-8080}"
exec httpd -f -p "${PORT:-8080}" -h "$HOME"
SH
chmod 0755 "$work" "$work/bin/codehub-ide"
chmod 1777 "$work/tmp"
# A marker in the image's home: a volume mounted over it must never receive it.
echo "from the image" >"$work/home/coder/image-marker"
chown -R 1000:1000 "$work/home/coder"
tar --create --numeric-owner -C "$work" . |
    docker import \
        --change 'ENV HOME=/home/coder PATH=/bin PORT=8080' \
        --change 'WORKDIR /home/coder' \
        --change 'USER 1000:1000' \
        --change 'EXPOSE 8080' \
        --change 'CMD ["codehub-ide"]' \
        - "$image"
