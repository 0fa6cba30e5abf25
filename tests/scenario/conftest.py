# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Fixtures of the scenarios.

    pytest tests/scenario                        against build/pgbraid
    pytest --target pgbouncer tests/scenario     checks the scenarios
    pytest --target direct tests/scenario        PostgreSQL, no pooler
    pytest --transports tcp,unix ...             not every transport
PGBRAID_BIN names another build of the program.
"""
import os
import shutil
import signal
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import certs as certs_module  # noqa: E402
import cluster as cluster_module  # noqa: E402
import pooler as pooler_module  # noqa: E402
import procs  # noqa: E402
import wan as wan_module  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--target", default="pgbraid",
                     choices=["pgbraid", "pgbouncer", "direct"],
                     help="what the scenarios meet")
    parser.addoption("--transports", default="tcp,tls,unix,quic,core:edge,core:pooled",
                     help="comma list of transports; core: only scenarios "
                     "of the core run over that one")


def stop_by_signal(number, frame):
    raise KeyboardInterrupt


def pytest_configure(config):
    signal.signal(signal.SIGTERM, stop_by_signal)
    for line in (
            "slow: takes many seconds",
            "alone: measures time; not beside other scenarios",
            "core: part of the bounded set for sanitizer builds",
            "transports(*names): only over these",
            "unfit(transport, why): not over this one",
            "differs(why): PgBouncer 1.18 does otherwise; ours decides",
            "pooled: makes no sense against PostgreSQL directly"):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc):
    if "transport" not in metafunc.fixturenames:
        return
    is_core = metafunc.definition.get_closest_marker("core")
    names = [n.removeprefix("core:") for n
             in metafunc.config.getoption("--transports").split(",")
             if is_core or not n.startswith("core:")]
    only = metafunc.definition.get_closest_marker("transports")
    if only:
        names = [n for n in names if n in only.args] or list(only.args[:1])
    metafunc.parametrize("transport", names, indirect=True)


def pytest_collection_modifyitems(config, items):
    target = config.getoption("--target")
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        for unfit in item.iter_markers("unfit"):
            if params.get("transport") == unfit.args[0]:
                item.add_marker(pytest.mark.skip(reason=unfit.args[1]))
        differs = item.get_closest_marker("differs")
        if differs and target == "pgbouncer":
            item.add_marker(pytest.mark.xfail(
                reason="PgBouncer 1.18: " + differs.args[0], strict=False))
        if target == "direct" and (item.get_closest_marker("pooled")
                                   or "make_pooler" in item.fixturenames):
            item.add_marker(pytest.mark.skip(reason="needs a pooler"))


@pytest.fixture(scope="session")
def session_folder():
    path = cluster_module.make_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def certs(session_folder):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is missing (package openssl)")
    folder = os.path.join(session_folder, "certs")
    os.mkdir(folder)
    out = certs_module.Certs(folder)
    for name in os.listdir(folder):
        procs.give(os.path.join(folder, name))
    procs.give(folder)
    return out


@pytest.fixture(scope="session")
def cluster(session_folder, certs):
    folder = os.path.join(session_folder, "pg")
    os.mkdir(folder)
    procs.give(folder)
    out = cluster_module.Cluster(folder, certs)
    yield out
    out.stop()


@pytest.fixture
def transport(request, target):
    if request.param in ("quic", "edge", "pooled"):
        if target != "pgbraid":
            pytest.skip("only pgbraid speaks QUIC")
        if not pooler_module.has_quic(request.getfixturevalue("binary")):
            pytest.skip("this build has no QUIC")
    return pooler_module.TRANSPORTS[request.param]


@pytest.fixture(scope="session")
def target(request):
    return request.config.getoption("--target")


@pytest.fixture(scope="session")
def binary(target, session_folder):
    """The program, copied to where the service account can run it."""
    if target == "direct":
        return None
    if target == "pgbouncer":
        path = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not os.path.exists(path):
            pytest.skip("pgbouncer is missing (package pgbouncer)")
        return path
    path = os.environ.get("PGBRAID_BIN",
                          os.path.join(ROOT, "build", "pgbraid"))
    if not os.path.exists(path):
        pytest.fail("%s is missing: run scripts/build" % path)
    copy = os.path.join(session_folder, "pgbraid")
    shutil.copy(path, copy)
    os.chmod(copy, 0o755)
    return copy


@pytest.fixture
def make_pooler(target, binary, cluster, certs, session_folder, request):
    """Starts poolers; each is judged when the scenario ends."""
    made = []

    def make(options=None, databases=None, transport=None, program=None,
             **kw):
        """program: (target, path) of another than the one under test."""
        if transport is None:
            transport = pooler_module.TRANSPORTS["tcp"]
        folder = os.path.join(session_folder, "p%d" % make.count)
        while os.path.exists(folder):
            make.count += 1
            folder = os.path.join(session_folder, "p%d" % make.count)
        os.mkdir(folder)
        procs.give(folder)
        out = pooler_module.Pooler.__new__(pooler_module.Pooler)
        out.proc = out.far = None
        out.own_edges = {}
        out.folder = folder
        made.append(out)
        out.__init__(*(program or (target, binary)), folder, cluster, certs,
                     transport, options, databases, **kw)
        return out
    make.count = 0
    yield make
    failed = getattr(request.node, "rep_call", None)
    errors = []
    if failed is not None and failed.failed:
        # It left its clients where it stopped: count no descriptors.
        for each in made:
            each.baseline_fds = None
    for each in reversed(made):
        try:
            each.verify()
        except AssertionError as exc:
            errors.append(str(exc))
        if failed is not None and failed.failed:
            print("--- log of the pooler\n" + each.log()[-6000:])
        each.kill()
        each.remove()
    assert not errors, "\n".join(errors)


@pytest.fixture
def make_wan(session_folder):
    reason = wan_module.why_not()
    if reason:
        pytest.skip(reason)
    made = []

    def make(**kw):
        made.append(wan_module.Wan(session_folder, **kw))
        return made[-1]
    yield make
    for each in made:
        each.close()


@pytest.fixture
def make_inside(make_pooler):
    """A pooler in a namespace, reached by its Unix socket."""

    def make(space, options, databases=None, admin=False, start=True, **kw):
        out = make_pooler(dict(options, listen_port=6432), databases,
                          transport=pooler_module.TRANSPORTS["unix"],
                          start=False, **kw)
        wan_module.put_inside(out, space, admin)
        if start:
            out.start()
        return out
    return make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, "rep_" + call.when, outcome.get_result())


@pytest.fixture
def pooler(request, target, cluster, certs, transport):
    """A pooler in transaction mode; its options by parametrisation."""
    if target == "direct":
        return pooler_module.Direct(cluster, certs, transport)
    options = getattr(request, "param", None)
    return request.getfixturevalue("make_pooler")(
        options, transport=transport)


@pytest.fixture
def one_server(make_pooler, transport):
    """A pooler with one server connection: all clients share it."""
    return make_pooler({"default_pool_size": 1}, transport=transport)


@pytest.fixture
def tool():
    """Finds a program or skips with its package's name."""
    def find(name, package):
        path = shutil.which(name)
        if path is None:
            bin_dir = procs.find_pg_bin()
            if bin_dir and os.path.exists(os.path.join(bin_dir, name)):
                return os.path.join(bin_dir, name)
            pytest.skip("%s is missing (package %s)" % (name, package))
        return path
    return find


@pytest.fixture
def run():
    """Runs a program that must succeed; its output."""
    def call(argv, timeout=120, **kw):
        got = subprocess.run(argv, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=timeout,
                             **kw)
        text = got.stdout.decode("utf-8", "replace")
        assert got.returncode == 0, "%s ended with %d:\n%s" % (
            argv[0], got.returncode, text[-4000:])
        return text
    return call
