# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""auth_type = hba, pam and ldap: which rule decides, and what comes of it."""
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import pgwire
import pooler as pooler_module
import procs
from pgwire import ServerError, WireClosed, startup

core = pytest.mark.core
REFUSED = (ServerError, WireClosed)


@pytest.fixture
def hba(make_pooler, request):
    """make(rules, ident, **options): a pooler with these files."""
    def make(rules, ident=None, transport=None, userlist=None, **options):
        p = make_pooler(dict(options, auth_type="hba"), start=False,
                        transport=transport, userlist=userlist)
        p.file("hba.conf", rules)
        changes = {"auth_hba_file": os.path.join(p.folder, "hba.conf")}
        if ident is not None:
            p.file("ident.conf", ident)
            changes["auth_ident_file"] = os.path.join(p.folder, "ident.conf")
        p.write_ini(**changes)
        p.start()
        return p
    return make


@pytest.fixture
def tls_options(certs):
    return {"client_tls_sslmode": "allow",
            "client_tls_cert_file": certs.server[0],
            "client_tls_key_file": certs.server[1],
            "client_tls_ca_file": certs.ca}


def over_tls(p, user, cert=None, database="db1"):
    sock = socket.create_connection((p.host, p.port), pgwire.TIMEOUT)
    assert pgwire.request_tls(sock) == b"S"
    ctx = pgwire.tls_context(p.certs.ca, *(cert or ()))
    wire = pgwire.Wire(ctx.wrap_socket(sock, server_hostname="localhost"))
    try:
        wire.login(user, database, p.password_of(user))
    except BaseException:
        wire.abort()
        raise
    return wire


def asked(p, user, transport="tcp", database="db1", **kw):
    """The code of the authentication request, or the error's text."""
    w = p.open(transport=transport)
    try:
        w.send(startup(dict({"user": user, "database": database}, **kw)))
        got = w.read()
        if got.type == "E":
            return got.fields["M"]
        return int.from_bytes(got.body[:4], "big")
    finally:
        w.abort()


NO_RULE = "no authentication method is found"
METHODS = """
# type  database  user     address        method
host    db1       u_trust  127.0.0.1/32   trust
host    db1       u_plain  127.0.0.0 255.0.0.0  password
host    db1       u_md5    all            md5
host    db1       "u_scram" 127.0.0.1/32  scram-sha-256
host    db1       u_other  127.0.0.1/32   reject
host    db2       all      127.0.0.1/32   md5
local   all       all                     trust
host    pgbouncer all      all            trust
"""


@core
def test_methods(hba):
    p = hba(METHODS)
    assert asked(p, "u_trust") == 0
    assert asked(p, "u_plain") == 3
    assert asked(p, "u_md5") == 5
    assert asked(p, "u_scram") == 10
    assert asked(p, "u_other") == "login rejected"
    assert asked(p, "u_other", database="db2") == 5
    assert asked(p, "u_utf8") == NO_RULE
    assert asked(p, "u_utf8", "unix") == 0
    for user in ("u_trust", "u_plain", "u_md5", "u_scram"):
        with p.wire(user) as w:
            assert w.value("SELECT current_user") == user


def test_an_unknown_user_is_not_trusted(hba):
    p = hba("host all all all trust\n")
    assert "trust" in asked(p, "nobody_knows")


def test_lists_and_files(hba):
    p = hba("host @dbs.txt @users.txt,u_md5 127.0.0.1/32 trust\n"
            "host sameuser all all password\n"
            "host /^db[0-9]$ u_other all md5\n"
            "host pgbouncer all all trust\n")
    p.file("dbs.txt", "db1 # the first\n\n\"db 9\"\n")
    p.file("users.txt", "u_trust,\nu_plain\n")
    p.reload()
    assert asked(p, "u_trust") == 0
    assert asked(p, "u_plain") == 0
    assert asked(p, "u_md5") == 0
    assert asked(p, "u_scram") == NO_RULE
    assert asked(p, "u_trust", database="db2") == NO_RULE
    assert asked(p, "u_trust", database="u_trust") == 3
    assert asked(p, "u_other", database="db2") == 5


@core
def test_with_and_without_tls(hba, tls_options):
    p = hba("hostssl all u_trust all trust\n"
            "hostnossl all u_other all trust\n"
            "host pgbouncer all all trust\n", **tls_options)
    over_tls(p, "u_trust").close()
    assert asked(p, "u_trust") == NO_RULE
    p.wire("u_other").close()
    with pytest.raises(ServerError, match=NO_RULE):
        over_tls(p, "u_other")


@core
def test_certificates_and_maps(hba, tls_options, certs):
    p = hba("hostssl all u_cert all cert\n"
            "hostssl all u_trust all cert map=cn\n"
            "hostssl all u_plain all cert map=part\n"
            "hostssl all u_other all cert map=cn\n"
            "hostssl all stranger all cert map=any\n"
            "host pgbouncer all all trust\n",
            "cn u_cert u_trust\n"
            "part /^u_(.)ert$ u_plain\\1\n"
            "any u_cert all\n", **dict(tls_options,
                                       client_tls_sslmode="verify-ca"))
    with over_tls(p, "u_cert", certs.client) as w:
        assert w.value("SELECT current_user") == "u_cert"
    over_tls(p, "u_trust", certs.client).close()
    for user in ("u_plain", "u_other", "stranger"):
        with pytest.raises(REFUSED):
            over_tls(p, user, certs.client)
    p.file("ident.conf", "cn u_cert u_other\npart /^u_c(.*)$ u_o\\1\n"
                         "part /^u_c.*(t)$ u_plain\n"
                         "any x y\n")
    p.signal(signal.SIGHUP)  # the console is behind TLS here

    def is_in_force():
        try:
            over_tls(p, "u_plain", certs.client).close()
            return True
        except REFUSED:
            return False
    procs.wait_for(is_in_force, 5, "the new map")
    with pytest.raises(REFUSED):
        over_tls(p, "u_trust", certs.client)


@core
def test_peer(hba):
    me = pwd.getpwuid(os.getuid()).pw_name
    p = hba("local all u_trust peer map=m\n"
            "local all u_other peer\n"
            "local all %s peer\n"
            "host all u_other all peer\n"
            "host pgbouncer all all trust\n" % me,
            "m nobody_here u_trust\nm /^%s$ u_trust\n" % me,
            userlist={me: "x", "u_trust": "secret", "u_other": "secret"})
    with p.wire("u_trust", transport="unix") as w:
        assert w.value("SELECT current_user") == "u_trust"
    for transport in ("unix", "tcp"):
        assert asked(p, "u_other", transport) == "unix socket login rejected"
    # the account's own name; PostgreSQL may not know the role
    assert asked(p, me, "unix") in (0, 'role "%s" does not exist' % me) or \
        me not in p.log()


def test_peer_of_an_unknown_user(hba):
    me = pwd.getpwuid(os.getuid()).pw_name
    p = hba("local all all peer map=m\nhost all all all trust\n",
            "m %s all\n" % me)
    assert asked(p, "nobody_knows", "unix") == "unix socket login rejected"
    p.wire("u_trust", transport="unix").close()


def test_replication_needs_its_word(hba):
    p = hba("host all u_trust all trust\n"
            "host replication u_other all trust\n"
            "host pgbouncer all all trust\n")
    assert asked(p, "u_trust", replication="true") == NO_RULE
    assert asked(p, "u_other", replication="true") != NO_RULE
    assert asked(p, "u_trust", replication="database") != NO_RULE
    assert asked(p, "u_other") == NO_RULE


def test_bad_lines_are_told_and_skipped(hba):
    p = hba("host all u_trust example.org trust\n"
            "host all u_trust all trust\n"
            "hostgssenc all all all gss\n"
            "local all all peer map=nowhere\n"
            "host pgbouncer all all trust\n")
    p.wire().close()
    for line in (1, 3, 4):
        p.wait_log(r"hba.conf:%d: " % line)
    assert "hba.conf:2: " not in p.log()
    assert asked(p, "u_trust", "unix") == NO_RULE


@pytest.mark.differs("skips it")
def test_a_bad_line_that_rejects_stops_the_load(hba):
    rules = "host all all all trust\n"
    p = hba(rules)
    p.file("hba.conf", "host all u_other exampel.org reject\n" + rules)
    with p.admin() as w:
        assert "hba.conf:1" in str(w.query("RELOAD").error)
    p.wire().close()
    code, text = p.check()
    assert code == 1 and "hba.conf:1" in text


def test_reload_and_a_file_that_went_away(hba):
    p = hba("host all u_trust all reject\nhost pgbouncer all all trust\n")
    assert asked(p, "u_trust") == "login rejected"
    p.file("hba.conf", "host all all all trust\n")
    assert asked(p, "u_trust") == "login rejected"
    p.reload()
    p.wire().close()
    os.unlink(os.path.join(p.folder, "hba.conf"))
    p.reload()
    p.wait_log("auth_hba_file: cannot read")
    p.wire().close()
    p.console("SET auth_type = 'trust'")
    p.wire().close()


def test_without_a_file_nobody_comes_in(make_pooler, cluster):
    p = make_pooler({"auth_type": "hba"})
    p.wait_log("auth_hba_file: not set")
    assert asked(p, "u_trust") == NO_RULE


def test_the_console_by_uid_whatever_the_rules(hba):
    """The account that runs the pooler is its administrator."""
    p = hba("local all all reject\nhost all all all reject\n")
    sql = "psql -X -A -t -h %s -p %d -U pgbouncer -d pgbouncer -c " \
        "'SHOW VERSION'" % (p.sockdir, p.port)
    if shutil.which("psql") is None:
        pytest.skip("psql is missing (package postgresql-client)")
    got = subprocess.run(procs.as_service(["sh", "-c", sql]), timeout=30,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert got.returncode == 0, got.stdout
    if os.getuid() == 0 and procs.service_user().pw_uid != 0:
        assert asked(p, "pgbouncer", "unix",
                     "pgbouncer") == "login rejected"


def test_auth_query_with_rules(hba, cluster):
    p = hba("host all authuser all reject\nhost all u_scram all md5\n"
            "host all u_md5 all scram-sha-256\nhost all all all trust\n",
            auth_user="authuser", userlist={"authuser": "authword"},
            auth_query="SELECT usename, passwd FROM pg_shadow WHERE"
                       " usename=$1")
    cluster.sql("GRANT pg_read_all_data TO authuser")
    cluster.sql("GRANT SELECT ON pg_shadow TO authuser", "db1")
    with p.wire("u_scram") as w:
        assert w.auth_seen[0] == 10
        assert w.value("SELECT current_user") == "u_scram"
    with pytest.raises(REFUSED):
        p.wire("u_md5")  # SCRAM cannot use an md5 secret
    assert asked(p, "authuser") == "login rejected"
    assert "trust" in asked(p, "nobody_knows")


@pytest.mark.parametrize("ttl", [0, 60])
def test_auth_query_cache(make_pooler, cluster, ttl):
    """An answer holds for a while, but a failed login asks again."""
    options = {"auth_type": "plain", "auth_user": "authuser",
               "auth_query": "SELECT usename, passwd FROM pg_shadow WHERE"
                             " usename=$1"}
    if ttl:
        options["auth_query_cache_ttl"] = ttl
    p = make_pooler(options, userlist={"authuser": "authword"})
    cluster.sql("GRANT SELECT ON pg_shadow TO authuser", "db1")
    cluster.sql("DROP ROLE IF EXISTS u_moody")
    cluster.sql("CREATE ROLE u_moody LOGIN PASSWORD 'old'")
    try:
        p.wire("u_moody", password="old").close()
        cluster.sql("ALTER ROLE u_moody PASSWORD 'new'")
        if ttl:
            p.wire("u_moody", password="old").close()
            with pytest.raises(REFUSED):
                p.wire("u_moody", password="new")
        p.wire("u_moody", password="new").close()
        with pytest.raises(REFUSED):
            p.wire("u_moody", password="old")
        cluster.sql("ALTER ROLE u_moody PASSWORD 'third'")
        p.reload()
        p.wire("u_moody", password="third").close()
    finally:
        cluster.sql("DROP ROLE u_moody")


# Lines that every PgBouncer reads, broken ones among them.
COMMON = """
# comment
local   all         u_trust             trust
local   db1         u_other             md5
local   all         all                 reject
host    db1         u_trust             127.0.0.1/32  trust
host    "db2",db1   u_plain,"u_md5"     127.0.0.0/8   md5
host    @more.txt   u_scram             127.0.0.1 255.255.255.255  password
host    sameuser    all                 127.0.0.1/32  password
host    db1         u_utf8              10.0.0.0/8    trust
host    db1         u_utf8              127.0.0.1/16  trust
hostssl all         u_other             127.0.0.1/32  trust
hostnossl db2       u_other             127.0.0.1/32  reject
host    all         +staff              127.0.0.1/32  trust
host    samerole    all                 127.0.0.1/32  trust
host    all         u_cert              example.org   trust
host    all         u_cert              127.0.0.1/33  trust
host    all         u_cert              127.0.0.1/32  gss
hostgss all         u_cert              127.0.0.1/32  trust
host    all         u_cert              127.0.0.1/32  trust extra
local
host    db2         u_cert              ::1/128       trust
host    all         u_owner             127.0.0.1/32  scram-sha-256
host    pgbouncer   all                 127.0.0.1/32  trust
"""


def test_same_answers_as_pgbouncer(hba, cluster, certs, session_folder,
                                   target):
    """The same file, and every user over every way in."""
    path = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if target != "pgbraid" or not os.path.exists(path):
        pytest.skip("compares pgbraid with the pgbouncer of this machine")
    ours = hba(COMMON)
    folder = os.path.join(session_folder, "theirs")
    os.mkdir(folder)
    procs.give(folder)
    theirs = pooler_module.Pooler(
        "pgbouncer", path, folder, cluster, certs, ours.transport,
        {"auth_type": "hba",
         "auth_hba_file": os.path.join(folder, "hba.conf")}, start=False)
    for p in (ours, theirs):
        p.file("hba.conf", COMMON)
        p.file("more.txt", "db1,db2\n")
    ours.reload()
    theirs.start()
    try:
        users = [u for u in cluster.users] + ["nobody_knows"]
        for transport in ("tcp", "unix"):
            for database in ("db1", "db2", "u_md5"):
                for user in users:
                    answers = [_kind(asked(p, user, transport, database))
                               for p in (ours, theirs)]
                    assert answers[0] == answers[1], (
                        transport, database, user)
    finally:
        theirs.kill()


def _kind(answer):
    """PgBouncer 1.18 has one text for all that it refuses."""
    return answer if answer in (3, 5, 10) or answer == 0 else "refused"


# --- hashes on helper threads ---------------------------------------------------------


@core
def test_slow_hashes_do_not_stop_the_worker(make_pooler):
    """A costly derivation, and a quick client on the same worker."""
    p = make_pooler({"auth_type": "scram-sha-256", "workers": 1,
                     "scram_iterations": 2000000})
    with p.wire("u_trust") as quick:
        p.console("SHOW LISTS")
        slow = []

        def login():
            start = time.monotonic()
            p.wire("u_other").close()
            slow.append(time.monotonic() - start)
        thread = threading.Thread(target=login)
        thread.start()
        worst = 0
        while thread.is_alive():
            start = time.monotonic()
            assert quick.value("SELECT 1") == "1"
            worst = max(worst, time.monotonic() - start)
        thread.join()
    assert slow and worst < max(0.2, slow[0] / 3)


def test_leaving_while_the_hash_runs(make_pooler):
    p = make_pooler({"auth_type": "plain", "workers": 1},
                    userlist={"u_trust": pgwire.scram_secret(
                        "secret", iterations=1000000)})
    for _ in range(5):
        w = p.open()
        w.send(startup({"user": "u_trust", "database": "db1"}))
        assert w.read().type == "R"
        w.send(pgwire.msg("p", b"secret\0"))
        w.abort()
    p.wire("u_trust").close()


def test_ending_while_the_hash_runs(make_pooler):
    p = make_pooler({"auth_type": "plain"},
                    userlist={"u_trust": pgwire.scram_secret(
                        "secret", iterations=1000000)})
    wires = []
    for _ in range(6):
        w = p.open()
        w.send(startup({"user": "u_trust", "database": "db1"}))
        assert w.read().type == "R"
        w.send(pgwire.msg("p", b"secret\0"))
        wires.append(w)
    assert p.stop() == 0
    for w in wires:
        w.abort()


# --- PAM ------------------------------------------------------------------------------

PAM_FILE = "/etc/pam.d/pgbouncer"
CHECKER = """#!/bin/sh
read -r word
test "$PAM_USER:$word" = "u_trust:pamword"
"""


@pytest.fixture
def pam(session_folder):
    """A service that knows one password; needs the right to write there."""
    if os.path.exists(PAM_FILE) or not os.access("/etc/pam.d", os.W_OK):
        pytest.skip("cannot make " + PAM_FILE)
    script = os.path.join(session_folder, "pamcheck")
    with open(script, "w") as out:
        out.write(CHECKER)
    os.chmod(script, 0o755)
    with open(PAM_FILE, "w") as out:
        out.write("auth required pam_exec.so expose_authtok quiet %s\n"
                  "account required pam_permit.so\n" % script)
    yield script
    os.unlink(PAM_FILE)


def check_service(p, word, name):
    with pytest.raises(ServerError, match=name + " authentication failed"):
        p.wire("u_trust", password="wrong")
    with pytest.raises(ServerError, match=name + " authentication failed"):
        p.wire("u_other", password=word)
    with p.wire("u_trust", password=word) as w:
        assert w.auth_seen[0] == 3
        assert w.value("SELECT current_user") == "u_trust"


@core
def test_pam(make_pooler, pam):
    p = make_pooler({"auth_type": "pam"})
    check_service(p, "pamword", "PAM")


def test_pam_by_rule(hba, pam):
    p = hba("host all u_trust,u_other all pam\nhost all all all trust\n")
    check_service(p, "pamword", "PAM")


def test_pam_that_takes_long_holds_nobody_up(make_pooler, pam):
    with open(pam, "w") as out:
        out.write("#!/bin/sh\nread -r word\nsleep 3\ntest $word = pamword\n")
    p = make_pooler({"auth_type": "pam", "workers": 1})
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    assert w.read().type == "R"
    w.send(pgwire.msg("p", b"pamword\0"))
    start = time.monotonic()
    other = p.open()
    other.send(startup({"user": "u_other", "database": "db1"}))
    assert other.read().type == "R"
    assert time.monotonic() - start < 2
    other.abort()
    assert w.read().type == "R"
    w.abort()


# --- LDAP -----------------------------------------------------------------------------

SLAPD_CONF = """
include %(schema)s/core.schema
include %(schema)s/cosine.schema
include %(schema)s/inetorgperson.schema
pidfile %(folder)s/slapd.pid
%(modules)s
database ldif
directory %(folder)s/db
suffix dc=test
rootdn cn=root,dc=test
rootpw rootword
access to attrs=userPassword by anonymous auth by * none
access to * by dn=cn=finder,dc=test read by anonymous auth by * none
"""

PEOPLE = """dn: dc=test
objectClass: dcObject
objectClass: organization
dc: test
o: test

dn: cn=finder,dc=test
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: finder
userPassword: findword

"""

PERSON = """dn: uid=%(uid)s,dc=test
objectClass: inetOrgPerson
uid: %(uid)s
cn: %(uid)s
sn: %(uid)s
mail: %(uid)s@test
userPassword: %(word)s

"""


class Ldap:
    def __init__(self, folder):
        self.folder = folder
        self.port = procs.free_port()
        root = os.environ.get("LDAP_ROOT", "")
        self.env = dict(os.environ)
        if root:
            self.env["LD_LIBRARY_PATH"] = \
                root + "/usr/lib/x86_64-linux-gnu"
        self.slapd = root + "/usr/sbin/slapd"
        conf = os.path.join(folder, "slapd.conf")
        os.mkdir(os.path.join(folder, "db"))
        with open(conf, "w") as out:
            out.write(SLAPD_CONF % {"schema": root + "/etc/ldap/schema",
                                    "folder": folder, "modules": ""})
        ldif = os.path.join(folder, "people.ldif")
        with open(ldif, "w") as out:
            out.write(PEOPLE + PERSON % {"uid": "u_trust",
                                         "word": "ldapword"}
                      + PERSON % {"uid": "u_other", "word": "otherword"})
        self.run("-T", "add", "-f", conf, "-l", ldif)
        self.proc = subprocess.Popen(
            [self.slapd, "-d", "0", "-f", conf, "-h",
             "ldap://127.0.0.1:%d" % self.port], env=self.env,
            preexec_fn=procs.die_with_parent, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        procs.wait_for(self.is_up, 10, "slapd")

    def run(self, *args):
        got = subprocess.run([self.slapd, *args], env=self.env, timeout=30,
                             stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        assert got.returncode == 0, got.stdout

    def is_up(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def stop(self):
        self.proc.terminate()
        self.proc.wait(10)


@pytest.fixture
def ldap(session_folder, tmp_path):
    if not os.path.exists(os.environ.get("LDAP_ROOT", "")
                          + "/usr/sbin/slapd"):
        pytest.skip("slapd is missing (package slapd)")
    out = Ldap(str(tmp_path))
    yield out
    out.stop()


def ldap_ways(port):
    bind = "ldapbinddn=cn=finder,dc=test ldapbindpasswd=findword "
    return {
        "simple": "ldapserver=127.0.0.1 ldapport=%d ldapprefix=\"uid=\""
                  " ldapsuffix=\",dc=test\"" % port,
        "search": "ldapserver=127.0.0.1 ldapport=%d \"ldapbasedn=dc=test\""
                  " \"ldapbinddn=cn=finder,dc=test\""
                  " ldapbindpasswd=findword" % port,
        "filter": "ldapserver=127.0.0.1 ldapport=%d ldapbasedn=\"dc=test\""
                  " ldapbinddn=\"cn=finder,dc=test\" ldapbindpasswd="
                  "findword ldapsearchfilter=\"(mail=$username@test)\""
                  % port,
        "url": "ldapurl=\"ldap://127.0.0.1:%d/dc=test?uid?sub\""
               " ldapbinddn=\"cn=finder,dc=test\" ldapbindpasswd=findword"
               % port,
    }


@core
@pytest.mark.parametrize("way", ["simple", "search", "filter", "url"])
def test_ldap(make_pooler, ldap, way):
    p = make_pooler({"auth_type": "ldap",
                     "auth_ldap_options": ldap_ways(ldap.port)[way]})
    check_service(p, "ldapword", "LDAP")
    assert "findword" not in p.log()


def test_ldap_by_rule(hba, ldap):
    p = hba("host all u_trust,u_other all ldap %s\nhost all all all trust\n"
            % ldap_ways(ldap.port)["simple"])
    check_service(p, "ldapword", "LDAP")


def test_ldap_that_is_not_there(make_pooler):
    p = make_pooler({"auth_type": "ldap",
                     "auth_ldap_options":
                     ldap_ways(procs.free_port())["simple"]})
    with pytest.raises(ServerError, match="LDAP authentication failed"):
        p.wire("u_trust", password="x")


def test_ldap_without_options(make_pooler):
    p = make_pooler({"auth_type": "ldap"})
    with pytest.raises(ServerError, match="config error"):
        p.wire("u_trust", password="x")
