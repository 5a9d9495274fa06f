# Starts PostgreSQL as its images do: root gives the volume to the database's user and becomes it.
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
chown postgres: "$PGDATA"
chmod 700 "$PGDATA"
as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
if ! test -s "$PGDATA/PG_VERSION"; then
  as initdb --auth=trust --encoding=UTF8 --no-sync >/dev/null
  echo "host all all all trust" >>"$PGDATA/pg_hba.conf"
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
