#!/bin/sh
# Makes what the processes of the stack prove themselves with, one folder (a volume) for each, so that none of them
# holds what belongs to another. What is there and good is kept, so it can be run again at every start; certificates
# of nodes are made anew every month, for agents that start after it.
#
#   prepare HOST...    names and addresses that clients and nodes reach the stack by
set -eu
umask 077

pki=/keys/authority/pki
hosts=
for host in "$@"; do
    hosts="$hosts --host $host"
done
# shellcheck disable=SC2086 # The words are meant to be split.
horchestra-local pki --pki-dir "$pki" init $hosts --server "$API_URL" >/dev/null

# give FOLDER FILE...: copies of files of the PKI.
give() {
    folder=/keys/$1
    shift
    for file in "$@"; do
        cp "$pki/$file" "$folder/.$file.new"
        mv "$folder/.$file.new" "$folder/$file"
    done
}
give api ca.crt server.crt server.key horchestra-api.crt horchestra-api.key
give nodegate ca.crt server.crt server.key horchestra-nodegate.crt horchestra-nodegate.key
# Workers sign for nodes, and are the only ones with the authority's key.
give workers ca.crt ca.key
give operator ca.crt admin.crt admin.key admin.conf

# What Secrets are sealed with and tokens signed with is the same for replicas and gateways.
[ -s /keys/api/secret-keys ] || horchestra-api secret-keys new /keys/api/secret-keys
ls /keys/api/token-keys/*.pem >/dev/null 2>&1 || horchestra-api token-keys new /keys/api/token-keys
# Gateways may be reading the copies: each is replaced as a whole, and what was taken away goes.
cp /keys/api/secret-keys /keys/nodegate/.secret-keys.new
mv /keys/nodegate/.secret-keys.new /keys/nodegate/secret-keys
mkdir -p /keys/nodegate/token-keys
for key in /keys/api/token-keys/*.pem; do
    name=${key##*/}
    cp "$key" "/keys/nodegate/token-keys/.$name.new"
    mv "/keys/nodegate/token-keys/.$name.new" "/keys/nodegate/token-keys/$name"
done
for key in /keys/nodegate/token-keys/*.pem; do
    [ -e "/keys/api/token-keys/${key##*/}" ] || rm -f "$key"
done

# The database's own folder is read by the database's user, and by nobody else that runs.
if ! [ -s /keys/authority/database-password ]; then
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >/keys/authority/database-password
fi
password=$(cat /keys/authority/database-password)
chmod 0755 /keys/database
printf '%s' "$password" >/keys/database/.new
chmod 0444 /keys/database/.new
mv /keys/database/.new /keys/database/password
for folder in api workers nodegate; do
    printf 'postgres:5432:horchestra:horchestra:%s\n' "$password" >"/keys/$folder/pgpass"
done

for node in $NODES; do
    conf=/keys/$node/node.conf
    if [ -z "$(find "$conf" -size +0 -mtime -30 2>/dev/null)" ]; then
        horchestra-local pki --pki-dir "$pki" node "$node" --server "$NODE_URL" --ttl 365d --out "$conf" >/dev/null
    fi
done
echo "The keys are ready."
