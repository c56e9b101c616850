#!/bin/sh
# Installs the real programs that tests start: PostgreSQL, a container engine, an image registry, an SSH server, mpirun,
# a browser, shells.
# Does nothing where they are there, and says what to do where it may not install.
set -eu

missing=
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || missing="$missing postgresql"
# dockerd may live in sbin, which is not on everybody's PATH.
PATH="$PATH:/usr/sbin:/sbin"
command -v dockerd >/dev/null 2>&1 && command -v docker >/dev/null 2>&1 || missing="$missing docker.io"
command -v docker-registry >/dev/null 2>&1 || missing="$missing docker-registry"
# The other engines' command lines; they need nobody to run for them, and Debian's runc is docker.io's already.
command -v podman >/dev/null 2>&1 || missing="$missing podman"
command -v buildah >/dev/null 2>&1 || missing="$missing buildah"
command -v mpirun >/dev/null 2>&1 || missing="$missing openmpi-bin"
command -v sshd >/dev/null 2>&1 && command -v ssh >/dev/null 2>&1 || missing="$missing openssh-server openssh-client"
# The base image's shell; it must be the static one, which needs no libraries inside the image.
[ -e /usr/share/doc/busybox-static ] || missing="$missing busybox-static"

command -v slurmctld >/dev/null 2>&1 && command -v slurmd >/dev/null 2>&1 && command -v munged >/dev/null 2>&1 ||
    missing="$missing slurmd slurmctld slurm-client munge slurm-wlm-basic-plugins"
# Slurm's accounts, in a database.
command -v slurmdbd >/dev/null 2>&1 && command -v mariadbd >/dev/null 2>&1 || missing="$missing slurmdbd mariadb-server"

# The browser that opens pages; Debian's brings what Playwright's own would have to download.
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"

# The shells beside bash for which there is completion.
command -v zsh >/dev/null 2>&1 || missing="$missing zsh"
command -v fish >/dev/null 2>&1 || missing="$missing fish"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing, which tests start" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # No cluster of the system's own: the tests make theirs.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    # Nor an engine or a registry of the system's own; policy-rc.d is how Debian's packages are told so.
    # https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod +x /usr/sbin/policy-rc.d
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    # shellcheck disable=SC2086  # one word for each package
    apt-get install -qq -y --no-install-recommends $missing >/dev/null
else
    echo "not installed:$missing: their tests will be skipped (Debian: apt-get install$missing)" >&2
fi
