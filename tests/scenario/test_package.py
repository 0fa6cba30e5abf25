# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What is shipped beside the program: examples, units, the Debian package."""
import glob
import os
import re
import shutil
import subprocess

import pytest

import conftest

EXAMPLES = os.path.join(conftest.ROOT, "packaging", "examples")
PACKAGING = os.path.join(conftest.ROOT, "packaging")

pytestmark = [pytest.mark.pooled, pytest.mark.differs("its files are its own")]


def run(*command, **kw):
    kw.setdefault("timeout", 120)
    return subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **kw)


def ini_files():
    return sorted(os.path.basename(f)
                  for f in glob.glob(os.path.join(EXAMPLES, "*.ini")))


@pytest.fixture
def etc(tmp_path, certs):
    """The folder that the examples speak of as /etc/pgbraid."""
    for name in os.listdir(EXAMPLES):
        with open(os.path.join(EXAMPLES, name)) as f:
            text = f.read().replace("/etc/pgbraid", str(tmp_path))
        (tmp_path / name).write_text(text)
    (tmp_path / "userlist.txt").write_text('"dba" "secret"\n')
    shutil.copy(certs.ca, tmp_path / "ca.crt")
    for part, name in zip(certs.server, ("server.crt", "server.key")):
        shutil.copy(part, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ini_files())
def test_example_is_right(etc, binary, name):
    text = (etc / name).read_text()
    command = [binary, "--check", str(etc / name)]
    if "\n[edge]" in text:
        command.insert(1, "edge")
    got = run(*command)
    assert got.returncode == 0, got.stdout
    assert "warning" not in got.stdout.lower()
    assert got.stdout.rstrip().endswith("configuration is fine")


def test_check_of_an_edge_finds_mistakes(etc, binary):
    bad = etc / "bad.ini"
    bad.write_text("[edge]\nlisten = 6432\nto = quic://db:99999\n")
    got = run(binary, "edge", "--check", str(bad))
    assert got.returncode == 1 and "99999" in got.stdout
    bad.write_text("[edge]\nlisten = 6432\nto = quic://db\ncheck = 1\n")
    got = run(binary, "edge", "--check", str(bad))
    assert got.returncode == 1 and "unknown key" in got.stdout


def test_example_from_which_to_start(binary):
    got = run(binary, "--check",
              os.path.join(conftest.ROOT, "etc", "pgbraid.ini"))
    assert got.returncode == 0, got.stdout


def test_haproxy_example(etc):
    haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    if not haproxy:
        pytest.skip("haproxy is not installed")
    got = run(haproxy, "-c", "-f", str(etc / "haproxy.cfg"))
    assert got.returncode == 0, got.stdout


def test_every_example_is_in_the_manual():
    with open(os.path.join(conftest.ROOT, "docs", "deployment.md")) as f:
        text = f.read()
    for name in os.listdir(EXAMPLES):
        assert "packaging/examples/" + name in text


@pytest.mark.parametrize("name", ["pgbraid.service", "pgbraid-edge@.service"])
def test_unit(tmp_path, binary, name):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    with open(os.path.join(PACKAGING, name)) as f:
        text = f.read().replace("/usr/bin/pgbraid", binary) \
            .replace("kill -HUP", "/bin/kill -HUP")
    unit = tmp_path / name.replace("@", "@root")
    unit.write_text(re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.M))
    got = run("systemd-analyze", "verify", "--man=no", str(unit))
    ours = [line for line in got.stdout.splitlines() if "pgbraid" in line]
    assert got.returncode == 0 and not ours, got.stdout


# ------------------------------------------------------------------ manuals

@pytest.mark.parametrize("page", ["pgbraid.1", "pgbraid.5"])
def test_manual_is_clean(page):
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    got = subprocess.run(
        ["man", "-l", "--warnings", "-Tutf8",
         os.path.join(conftest.ROOT, "docs", page)],
        env=dict(os.environ, MANROFFSEQ="", MANWIDTH="80", LC_ALL="C.UTF-8"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert got.returncode == 0 and got.stdout
    assert got.stderr == ""


def test_manual_has_every_option(binary):
    """Those of the command line, and those of the file."""
    with open(os.path.join(conftest.ROOT, "docs", "pgbraid.1")) as f:
        page = f.read().replace("\\-", "-")
    for who in ([], ["edge"]):
        words = run(binary, *who, "--help").stdout
        for word in re.findall(r"--[a-z][a-z-]+", words):
            assert word in page, word
    with open(os.path.join(conftest.ROOT, "docs", "pgbraid.5")) as f:
        page = f.read().replace("\\-", "-")
    for table, row in (("option.def", r"^OPT\(\w+, (\w+)"),
                       ("section.def", r"^[A-Z]+_?KEY\(\w+, (\w+)")):
        with open(os.path.join(conftest.ROOT, "src", "conf", table)) as f:
            names = re.findall(row, f.read(), re.M)
        assert table != "option.def" or len(names) > 100
        for name in names:
            assert name in page, name


# ---------------------------------------------------------- Debian package

IN_ROOT = r"""
set -e
mount -t tmpfs tmpfs %(base)s
mkdir %(base)s/upper %(base)s/work %(base)s/root
mount -t overlay overlay -o \
    lowerdir=/,upperdir=%(base)s/upper,workdir=%(base)s/work %(base)s/root
mount -t proc proc %(base)s/root/proc
mount --rbind /dev %(base)s/root/dev
cp %(deb)s %(base)s/root/pgbraid.deb
cat >%(base)s/root/usr/sbin/policy-rc.d <<'END'
#!/bin/sh
exit 101
END
chmod +x %(base)s/root/usr/sbin/policy-rc.d
exec chroot %(base)s/root /bin/sh -ec '%(script)s'
"""


@pytest.fixture(scope="module")
def deb(tmp_path_factory):
    for program, package in (("dh", "debhelper"), ("meson", "meson"),
                             ("dpkg-buildpackage", "dpkg-dev")):
        if not shutil.which(program):
            pytest.skip("%s is not installed" % package)
    if run("dpkg-checkbuilddeps",
           os.path.join(PACKAGING, "debian", "control")).returncode:
        pytest.skip("what packaging/debian/control names is not installed")
    got = run(os.path.join(conftest.ROOT, "scripts", "package"), timeout=600)
    assert got.returncode == 0, got.stdout
    return got.stdout.splitlines()[-1]


def in_throwaway_root(tmp_path, deb, script):
    """The script as root in a copy of this system that nobody keeps."""
    if os.geteuid():
        pytest.skip("needs root for a root folder of its own")
    assert "'" not in script
    base = tmp_path / "root"
    base.mkdir()
    probe = run("unshare", "-m", "sh", "-ec", IN_ROOT % {
        "base": base, "deb": deb, "script": "true"})
    if probe.returncode:
        pytest.skip("no overlay of the root folder: " +
                    probe.stdout.strip()[-100:])
    return run("unshare", "-m", "-p", "-f", "sh", "-ec", IN_ROOT % {
        "base": base, "deb": deb, "script": script})


@pytest.mark.slow
def test_package_has_what_it_should(deb):
    names = run("dpkg-deb", "--contents", deb).stdout
    for name in ("usr/bin/pgbraid", "etc/pgbraid/pgbraid.ini",
                 "etc/logrotate.d/pgbraid", "man1/pgbraid.1.gz",
                 "man5/pgbraid.5.gz", "system/pgbraid.service",
                 "system/pgbraid-edge@.service", "examples/pooler.ini",
                 "doc/pgbraid/copyright"):
        assert name in names, name
    conffiles = run("dpkg-deb", "-I", deb, "conffiles").stdout.split()
    assert sorted(conffiles) == ["/etc/logrotate.d/pgbraid",
                                 "/etc/pgbraid/pgbraid.ini"]


@pytest.mark.slow
def test_install_upgrade_remove_purge(tmp_path, deb):
    """What dpkg does with it, in a root folder that is thrown away."""
    got = in_throwaway_root(tmp_path, deb, r"""
        dpkg -i /pgbraid.deb
        getent passwd pgbraid
        /usr/bin/pgbraid --check /etc/pgbraid/pgbraid.ini
        stat -c "%n %a %U:%G" /etc/pgbraid/pgbraid.ini \
            /etc/pgbraid/userlist.txt /var/log/pgbraid
        man -w pgbraid 5 pgbraid

        # It runs as its account.
        mkdir -m 755 /run/pgbraid && chown pgbraid /run/pgbraid
        sed -i "s/^listen_addr/;listen_addr/" /etc/pgbraid/pgbraid.ini
        setpriv --reuid=pgbraid --regid=pgbraid --clear-groups \
            /usr/bin/pgbraid --quiet /etc/pgbraid/pgbraid.ini &
        for i in $(seq 100); do
            [ -S /run/pgbraid/.s.PGSQL.6432 ] && break
            sleep 0.1
        done
        setpriv --reuid=pgbraid --regid=pgbraid --clear-groups \
            psql -XAt -h /run/pgbraid -p 6432 -U pgbouncer pgbouncer \
            -c "SHOW VERSION"
        kill $! && wait $!
        test -s /var/log/pgbraid/pgbraid.log

        # An upgrade leaves what an administrator changed.
        chmod 0600 /etc/pgbraid/userlist.txt
        echo "; mine" >>/etc/pgbraid/pgbraid.ini
        dpkg -i /pgbraid.deb
        grep -q "^; mine" /etc/pgbraid/pgbraid.ini
        stat -c "after: %a" /etc/pgbraid/userlist.txt

        dpkg -r pgbraid
        test ! -e /usr/bin/pgbraid
        test -e /etc/pgbraid/pgbraid.ini
        dpkg -P pgbraid
        test ! -e /etc/pgbraid
        test ! -e /var/log/pgbraid
        find /etc -xdev -name "*pgbraid*"
        find /lib/systemd/ -xdev -name "*pgbraid*"
        echo all done
        """)
    assert got.returncode == 0, got.stdout
    lines = got.stdout.splitlines()
    assert lines[-1] == "all done", got.stdout
    assert "configuration is fine" in got.stdout
    assert "/etc/pgbraid/pgbraid.ini 640 root:pgbraid" in lines
    assert "/etc/pgbraid/userlist.txt 640 root:pgbraid" in lines
    assert "/var/log/pgbraid 750 pgbraid:pgbraid" in lines
    assert any(line.startswith("pgbraid ") for line in lines), got.stdout
    assert "after: 600" in lines
