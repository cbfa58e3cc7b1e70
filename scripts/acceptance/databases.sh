# shellcheck shell=bash
# PostgreSQL on a mount whose daemon is killed; acceptance.sh reads this and calls `run_postgres`.
# (SQLite, in both of its modes, is in demo.sh.)
#
# pgbench transfers money; each transaction leaves a row of history that names its client and its
# number. What a client logged was committed before. After each kill of the daemon, which takes the
# server with it, both recover, and then:
#
# SQL-D1  All four sums of pgbench are the same: no transaction is there in parts.
# SQL-D2  Each client's rows are numbered without a gap, up to what it logged, or one more.
# SQL-D3  Every index has what its table has (pg_amcheck), every page its checksum (pg_checksums).

PG_CLIENTS=4

postgres_bin() { find /usr/lib/postgresql -path '*/bin/initdb' | sort -V | tail -n 1; }
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
query() { as_postgres "$PG/psql" -X -A -t -v ON_ERROR_STOP=1 -h "$PLACE/pg" postgres -c "$1"; }

start_postgres() {
    as_postgres "$PG/postgres" -D "$MNT/pg/data" >>"$PLACE/pg/log" 2>&1 &
    SERVER=$!
    CHILDREN=("$SERVER")
    local try
    for ((try = 0; try < 600; try++)); do
        kill -0 "$SERVER" 2>/dev/null || break
        ! as_postgres "$PG/pg_isready" -q -h "$PLACE/pg" || return 0
        sleep 0.1
    done
    tail -n 20 "$PLACE/pg/log" >&2
    die "PostgreSQL does not start"
}

# crash_postgres: the server and all of its processes, which had a filesystem a moment ago.
crash_postgres() {
    local processes
    mapfile -t processes < <(pgrep -P "$SERVER")
    kill -KILL "$SERVER" "${processes[@]}" 2>/dev/null || true
    wait "$SERVER" 2>/dev/null || true
    CHILDREN=()
    for process in "${processes[@]}"; do
        while kill -0 "$process" 2>/dev/null; do sleep 0.05; done
    done
}

stop_postgres() {
    as_postgres "$PG/pg_ctl" -D "$MNT/pg/data" -m fast -w stop >/dev/null
    wait "$SERVER" || true
    CHILDREN=()
}

# transfers ROUND: runs until the server is gone; the logs are promises.
transfers() {
    as_postgres "$PG/pgbench" -n -c $PG_CLIENTS -j 2 -T 3600 -D round="$1" -D n=0 \
        -f "$PLACE/pg/transfer.sql" -l --log-prefix="$PLACE/pg/round$1" -h "$PLACE/pg" postgres \
        >"$PLACE/pg/pgbench.out" 2>&1
}

# The transaction of pgbench's own script, with a name.
write_transfer() {
    cat >"$PLACE/pg/transfer.sql" <<'EOF'
\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
\set n :n + 1
begin;
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
select abalance from pgbench_accounts where aid = :aid;
update pgbench_tellers set tbalance = tbalance + :delta where tid = :tid;
update pgbench_branches set bbalance = bbalance + :delta where bid = :bid;
insert into pgbench_history values (:tid, :bid, :aid, :delta, current_timestamp,
    :round || '-' || :client_id || '-' || :n);
end;
EOF
}

D1='select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
    and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)
    and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)'

# verify_client ROUND CLIENT: SQL-D2, and adds what was promised to PROMISED.
verify_client() {
    local logged rows highest
    logged=$(cat "$PLACE/pg/round$1".* | awk -v client="$2" '$1 == client' | wc -l)
    IFS='|' read -r rows highest < <(query "select count(*),
        coalesce(max(split_part(filler, '-', 3)::int), 0)
        from (select distinct trim(filler) as filler from pgbench_history) as named
        where filler like '$1-$2-%'")
    [ "$rows" = "$highest" ] || die "SQL-D2: client $2 has $rows rows, up to number $highest"
    [ "$highest" -ge "$logged" ] || die "SQL-D2: client $2 had $logged commits, $highest are there"
    [ "$highest" -le $((logged + 1)) ] || die "SQL-D2: client $2 had $logged commits, not $highest"
    PROMISED=$((PROMISED + logged))
}

verify_postgres() { # ROUND
    local client PROMISED=0
    [ "$(query "$D1")" = t ] || die "SQL-D1: the sums differ"
    for ((client = 0; client < PG_CLIENTS; client++)); do verify_client "$1" "$client"; done
    as_postgres "$PG/pg_amcheck" --install-missing --heapallindexed --parent-check \
        -h "$PLACE/pg" --all >"$PLACE/pg/amcheck" 2>&1 ||
        { cat "$PLACE/pg/amcheck" >&2; die "SQL-D3: pg_amcheck"; }
    stop_postgres
    as_postgres "$PG/pg_checksums" --check -D "$MNT/pg/data" >"$PLACE/pg/checksums" ||
        { cat "$PLACE/pg/checksums" >&2; die "SQL-D3: pg_checksums"; }
    say "postgres, kill $1: $PROMISED commits logged, all there; sums, indexes, checksums right"
    start_postgres
}

run_postgres() {
    local kill client
    PG=$(dirname "$(postgres_bin)")
    [ -x "$PG/initdb" ] || die "there is no PostgreSQL; \`scripts/setup.sh acceptance\`"
    begin
    mkdir "$PLACE/pg" "$MNT/pg"
    chown postgres:postgres "$PLACE/pg" "$MNT/pg"
    as_postgres "$PG/initdb" --data-checksums -A trust -D "$MNT/pg/data" >"$PLACE/pg/initdb"
    cat >>"$MNT/pg/data/postgresql.conf" <<EOF
listen_addresses = ''
unix_socket_directories = '$PLACE/pg'
max_wal_size = 64MB
checkpoint_timeout = 30s
EOF
    start_postgres
    as_postgres "$PG/pgbench" -q -i -s 5 -h "$PLACE/pg" postgres 2>/dev/null
    write_transfer
    for ((kill = 1; kill <= KILLS; kill++)); do
        transfers "$kill" &
        client=$!
        CHILDREN+=("$client")
        sleep "$TIME.$((RANDOM % 10))"
        kill -0 "$client" 2>/dev/null || { cat "$PLACE/pg/pgbench.out" >&2; die "pgbench ended"; }
        kill_daemon
        crash_postgres
        wait "$client" || true
        recover
        start_postgres
        verify_postgres "$kill"
    done
    stop_postgres
    finish
}
