#!/usr/bin/env bash
# Makes the base images of docker-compose.yml from Debian's packages, for machines that reach no image registry.
# Part of verify.sh; needs root, debootstrap, and release builds of all programs in target/release.
#
#   stand-ins.sh FOLDER    a folder for what is made on the way
set -euo pipefail
work=$1
target=${CARGO_TARGET_DIR:-target}/release
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
programs=(horchestra-api horchestra-workers horchestra-nodegate horchestra-agent horchestra-local)

[ "$(id -u)" = 0 ] || { echo "Making base images needs root." >&2; exit 1; }
for program in "${programs[@]}"; do
    [ -x "$target/$program" ] || { echo "$target/$program is missing: cargo build --release --bin $program" >&2; exit 1; }
done
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null

have() { docker image inspect "$1" >/dev/null 2>&1; }
# Who takes away what is made here finds it in this list.
made() { echo "$1" >>"$work/made"; }

runtime=${RUNTIME_IMAGE:-debian:bookworm-slim}
if ! have "$runtime"; then
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/base" >"$work/debootstrap.log" 2>&1 ||
        { tail "$work/debootstrap.log"; exit 1; }
    rm -rf "$work"/base/var/cache/apt/* "$work"/base/var/lib/apt/lists/* "$work"/base/usr/share/{doc,man,locale}/*
    tar -C "$work/base" -c . | docker import - "$runtime" >/dev/null
    made "$runtime"
fi

# build IMAGE: from a Dockerfile on standard input, with $work/context as context. Packages come the way this
# machine gets its own.
build() {
    mkdir -p "$work/context"
    cat >"$work/context/Dockerfile"
    DOCKER_BUILDKIT=0 docker build --network host -q -t "$1" "$work/context" >/dev/null
    made "$1"
    rm -rf "$work/context"
}
context() {
    mkdir -p "$work/context/apt"
    cp /etc/apt/sources.list "$work/context/apt/" 2>/dev/null || true
    cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$work/context/apt/"
}

rust=${RUST_IMAGE:-rust:1.95-bookworm}
if ! have "$rust" || [ "$(docker inspect --format '{{index .Config.Labels "stand-in"}}' "$rust")" = yes ]; then
    context
    cp "${programs[@]/#/$target/}" "$work/context/"
    cat >"$work/context/cargo" <<'CARGO'
#!/bin/sh
# Stands in for a build: the programs were built before.
mkdir -p target/release && cp /built/* target/release/
CARGO
    chmod +x "$work/context/cargo"
    build "$rust" <<DOCKERFILE
FROM $runtime
LABEL stand-in=yes
COPY apt/ /etc/apt/
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends binutils >/dev/null
COPY horchestra-* /built/
COPY cargo /usr/local/bin/
DOCKERFILE
fi

balancer=${BALANCER_IMAGE:-haproxy:2.8-bookworm}
if ! have "$balancer"; then
    context
    build "$balancer" <<DOCKERFILE
FROM $runtime
LABEL stand-in=yes
COPY apt/ /etc/apt/
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy >/dev/null \
    && rm -rf /var/lib/apt/lists/*
USER haproxy
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
DOCKERFILE
fi

# Of the official image's entry point only what docker-compose.yml uses: initdb, a password from a file, a database.
postgres=${POSTGRES_IMAGE:-postgres:15-bookworm}
if ! have "$postgres"; then
    context
    cat >"$work/context/entrypoint" <<'ENTRYPOINT'
#!/bin/bash
set -euo pipefail
umask 077
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust $POSTGRES_INITDB_ARGS
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    pg_ctl -w start -o "-c listen_addresses='' -k /tmp"
    createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w stop -m fast
fi
exec postgres -c listen_addresses='*' -k /run/postgresql
ENTRYPOINT
    chmod 0755 "$work/context/entrypoint"
    build "$postgres" <<DOCKERFILE
FROM $runtime
LABEL stand-in=yes
COPY apt/ /etc/apt/
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \
    && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15 >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15 \
    && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
ENV PGDATA=/var/lib/postgresql/data PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin
COPY entrypoint /usr/local/bin/
ENTRYPOINT ["entrypoint"]
DOCKERFILE
fi
echo "base images:"
for image in "$runtime" "$rust" "$balancer" "$postgres"; do
    docker images --format '{{.Repository}}:{{.Tag}} {{.Size}}' "$image"
done
