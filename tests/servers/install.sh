#!/bin/sh
# Installs the real servers that tests start: PostgreSQL. Does nothing where they are there, and says what to do where
# it may not install.
set -eu

if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing PostgreSQL, which tests start" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # No cluster of the system's own: the tests make theirs.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    apt-get install -qq -y --no-install-recommends postgresql >/dev/null
else
    echo "PostgreSQL is not installed: its tests will be skipped (Debian: apt-get install postgresql)" >&2
fi
