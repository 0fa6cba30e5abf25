-- SPDX-License-Identifier: ISC
-- Copyright (c) 2026 The pgbraid authors
--
-- pgbraid_stat_mptcp shows the Multipath TCP subflows of pgbraid's connections
-- in SQL, the way pg_stat_ssl shows TLS: a row a subflow, keyed by the pid of
-- the backend. It reads SHOW MPTCP of the console through dblink.
--
-- To be run once by a superuser, in the database where the view shall be; the
-- user is one of stats_users:
--
--   psql -v console_host=127.0.0.1 -v console_port=6432 \
--        -v console_user=stats -v console_password=secret \
--        -f pgbraid_stat_mptcp.sql
--
-- Everybody may read it. As in pg_stat_activity, rows of other users' backends
-- and of clients that have no backend now are for members of
-- pg_read_all_stats. Running the file again changes the connection.

\set ON_ERROR_STOP on
BEGIN;

CREATE EXTENSION IF NOT EXISTS dblink;

DROP VIEW IF EXISTS pgbraid_stat_mptcp;
DROP FUNCTION IF EXISTS pgbraid_mptcp_rows();
DROP SERVER IF EXISTS pgbraid_console CASCADE;

CREATE SERVER pgbraid_console FOREIGN DATA WRAPPER dblink_fdw
    OPTIONS (host :'console_host', port :'console_port', dbname 'pgbraid');
CREATE USER MAPPING FOR CURRENT_USER SERVER pgbraid_console
    OPTIONS (user :'console_user', password :'console_password');

-- Runs as its owner, who alone knows the password; so it is here that rows are
-- kept from those who logged in as somebody else.
CREATE FUNCTION pgbraid_mptcp_rows()
RETURNS TABLE (
    type text,
    id bigint,
    "user" text,
    database text,
    backend_pid integer,
    token text,
    fallback integer,
    subflows integer,
    sent_bytes bigint,
    received_bytes bigint,
    subflow integer,
    local_addr text,
    local_port integer,
    addr text,
    port integer,
    subflow_sent_bytes bigint,
    subflow_received_bytes bigint,
    rtt_us bigint,
    cwnd bigint,
    retransmits bigint,
    backup integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
    RETURN QUERY SELECT * FROM dblink('pgbraid_console', 'SHOW MPTCP') AS t(
        type text, id bigint, "user" text, database text,
        backend_pid integer, token text, fallback integer, subflows integer,
        sent_bytes bigint, received_bytes bigint, subflow integer,
        local_addr text, local_port integer, addr text, port integer,
        subflow_sent_bytes bigint, subflow_received_bytes bigint,
        rtt_us bigint, cwnd bigint, retransmits bigint, backup integer)
    WHERE pg_has_role(session_user, 'pg_read_all_stats', 'USAGE')
       OR EXISTS (SELECT FROM pg_stat_activity a
                  WHERE a.pid = t.backend_pid AND a.usename = session_user);
END
$$;

DO $$
BEGIN
    -- dblink may live in any schema; nobody else's functions are meant.
    EXECUTE format(
        'ALTER FUNCTION pgbraid_mptcp_rows() SET search_path = %I, pg_catalog, '
        'pg_temp',
        (SELECT n.nspname FROM pg_extension e
         JOIN pg_namespace n ON n.oid = e.extnamespace
         WHERE e.extname = 'dblink'));
END
$$;

CREATE VIEW pgbraid_stat_mptcp AS
SELECT m.backend_pid AS pid,
       CASE m.type WHEN 'C' THEN 'client' ELSE 'server' END AS side,
       m.id,
       m."user" AS usename,
       m.database AS datname,
       m.fallback = 0 AS mptcp,
       m.token,
       m.subflows,
       m.sent_bytes,
       m.received_bytes,
       m.subflow,
       m.local_addr::inet AS local_addr,
       m.local_port,
       m.addr::inet AS addr,
       m.port,
       m.subflow_sent_bytes,
       m.subflow_received_bytes,
       m.rtt_us / 1000.0 AS rtt_ms,
       m.cwnd,
       m.retransmits,
       m.backup = 1 AS backup
FROM pgbraid_mptcp_rows() m;

COMMENT ON VIEW pgbraid_stat_mptcp IS
    'Multipath TCP subflows of the connections that pgbraid carries';
GRANT SELECT ON pgbraid_stat_mptcp TO PUBLIC;

COMMIT;
