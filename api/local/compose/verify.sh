#!/usr/bin/env bash
# Tries the compose files for real, from nothing to nothing: builds the images, brings the stack up, applies an
# example, kills every container while a watch goes on, and takes everything away again. For machines that reach
# no image registry it makes the base images itself, from Debian's packages and under the very names that the
# files use; the toolchain's image then holds a `cargo` that hands out programs which were built before.
#
#   api/local/compose/verify.sh [--stand-ins] [--keep]
#
#   --stand-ins   make the base images (root, debootstrap); needs `cargo build --release` of all programs before
#   --keep        leave the stack running at the end
set -euo pipefail
cd "$(dirname "$0")/../../.."

stand_ins=0 keep=0
for word in "$@"; do
    case $word in
        --stand-ins) stand_ins=1 ;;
        --keep) keep=1 ;;
        *) echo "usage: $0 [--stand-ins] [--keep]" >&2; exit 2 ;;
    esac
done

work=$(mktemp -d)
# A project, images and a network of its own: a stack that somebody uses stays as it is.
export COMPOSE_PROJECT_NAME=horchestra-verify
export IMAGE_TAG=verify
export SUBNET=${SUBNET:-172.29.54.0/24}
: "${COMPOSE:=$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)}"
API_PORT=${API_PORT:-18443}
NODE_PORT=${NODE_PORT:-18444}
export API_PORT NODE_PORT

compose() { $COMPOSE "$@"; }
say() { printf '%s %s\n' "$(date +%T)" "$*"; }
fail() {
    say "FAILED: $*"
    compose ps || true
    compose logs --tail=40 2>/dev/null || true
    exit 1
}

watcher=
clean_up() {
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
    if [ "$keep" = 0 ]; then
        compose down --volumes --remove-orphans --timeout 10 >/dev/null 2>&1 || true
        # shellcheck disable=SC2046 # Words are meant.
        docker image rm $(docker images -q "${IMAGE_PREFIX:-horchestra}-*:$IMAGE_TAG") >/dev/null 2>&1 || true
        # Under the names of others they would be taken for the real ones. Those that somebody uses stay.
        if [ -s "$work/made" ]; then
            tac "$work/made" | xargs -n 1 docker image rm >/dev/null 2>&1 || true
        fi
        rm -rf "$work"
    fi
}
trap clean_up EXIT

up() {
    compose up -d >"$work/up.log" 2>&1 && return
    tail -40 "$work/up.log"
    fail "the stack does not come up"
}

watch_on() {
    kubectl get app -w --output-watch-events \
        -o jsonpath='{.type}{" "}{.object.metadata.name}{" "}{.object.metadata.labels.turn}{"\n"}' \
        >>"$work/watch" 2>>"$work/watch.errors" &
    watcher=$!
}

# The engine restarts what dies, but not what it was told to kill.
kill_one() {
    local id pid
    id=$(compose ps -q "$1")
    pid=$(docker inspect --format '{{.State.Pid}}' "$id")
    if [ "$(id -u)" = 0 ] && [ -d "/proc/$pid" ]; then
        kill -KILL "$pid"
    else
        docker kill --signal KILL "$id" >/dev/null
        compose up -d --no-deps "$1" >/dev/null 2>&1
    fi
}

# until_true SECONDS WHAT COMMAND...: tries until the command succeeds.
until_true() {
    local limit=$1 what=$2 began=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $((SECONDS - began)) -lt "$limit" ] || fail "$what: not within $limit s"
        sleep 0.2
    done
    say "$what: after $((SECONDS - began)) s"
}

# From nothing: what an earlier run left (--keep, or one that was killed) goes.
compose down --volumes --remove-orphans --timeout 10 >/dev/null 2>&1 || true

if [ "$stand_ins" = 1 ]; then
    api/local/compose/stand-ins.sh "$work"
fi

if python3 -m venv "$work/venv" 2>/dev/null && "$work/venv/bin/pip" -q install check-jsonschema 2>/dev/null; then
    "$work/venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec docker-compose.yml
else
    say "NOTE: no check-jsonschema to be had, so the file is not checked against the schema of docker compose 2"
fi
compose config --quiet

say "building the images"
compose build >"$work/build.log" 2>&1 || { tail -40 "$work/build.log"; fail "the images do not build"; }
docker images --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep "^${IMAGE_PREFIX:-horchestra}-.*:$IMAGE_TAG " | sort

say "bringing the stack up"
began=$SECONDS
up

# Every container that goes on running is healthy.
healthy() {
    local id state
    for id in $(compose ps -q); do
        state=$(docker inspect --format '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}} {{.State.ExitCode}}' "$id")
        case $state in
            "running healthy "* | "exited none 0") ;;
            *) return 1 ;;
        esac
    done
}
until_true 120 "all healthy" healthy
say "from nothing to all healthy: $((SECONDS - began)) s"
compose ps

for id in $(compose ps -q); do
    user=$(docker inspect --format '{{.Config.User}}' "$id")
    case $user in
        '' | root | 0 | 0:*) [ "$(docker exec "$id" id -u 2>/dev/null || echo 1)" != 0 ] || fail "$(docker inspect --format '{{.Name}}' "$id") runs as root" ;;
    esac
    [ "$(docker inspect --format '{{.HostConfig.ReadonlyRootfs}}' "$id")" = true ] || fail "a root file system can be written"
done
say "nothing runs as root, no root file system can be written"

compose run --rm --no-deps -T --entrypoint cat nodes /keys/operator/admin.conf >"$work/kubeconfig" 2>/dev/null
export KUBECONFIG=$work/kubeconfig
kubectl get nodes
kubectl apply -f api/local/examples/web.yaml
kubectl wait --for=jsonpath='{.status.phase}'=Running app/web --timeout=60s
kubectl logs web --tail=1

# A client that lists and watches must see every change, whoever is killed meanwhile.
watch_on

turn=0
label() { kubectl label app web --overwrite "turn=$turn"; }
for service in api-1 api-2 workers-1 workers-2 nodegate-1 nodegate-2 agent-1 agent-2 agent-3 balancer postgres; do
    turn=$((turn + 1))
    kill_one "$service"
    until_true 60 "$service killed: a write is acknowledged" label
    until_true 60 "$service killed: all healthy again" healthy
    if ! kill -0 "$watcher" 2>/dev/null; then
        # Through the balancer a watch ends with it, and with the replica that serves it; clients go on.
        watch_on
    fi
done
until_true 30 "the watch has seen the last change" grep -q " $turn\$" "$work/watch"
kubectl wait --for=jsonpath='{.status.phase}'=Running app/web --timeout=60s
kubectl delete app web --timeout=60s

say "stopping and starting again keeps everything"
kubectl apply -f api/local/examples/job.yaml
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded app/hello --timeout=60s
compose down --timeout 30 >/dev/null 2>&1
up
until_true 120 "all healthy" healthy
[ "$(kubectl get app hello -o jsonpath='{.status.phase}')" = Succeeded ] || fail "a job was forgotten"

if [ "$keep" = 0 ]; then
    compose down --volumes --timeout 30 >/dev/null 2>&1
    left=$(docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME"; docker volume ls -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")
    [ -z "$left" ] || fail "something is left: $left"
fi
say "passed"
