# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The same bytes, sent to PostgreSQL and through the pooler, give the same
reply. The scripts are in differential.py; each runs whole and byte by byte.
"""
import pytest

import differential


@pytest.fixture
def both(pooler, cluster, certs):
    import pooler as pooler_module
    direct = pooler_module.Direct(cluster, certs, pooler.transport)
    return direct, pooler


@pytest.mark.core
@pytest.mark.pooled
@pytest.mark.parametrize("dribble", [False, True], ids=["whole", "bytes"])
@pytest.mark.parametrize("script", differential.SCRIPTS,
                         ids=[s.name for s in differential.SCRIPTS])
def test_same_reply(both, script, dribble, request, target):
    if script.differs and target == "pgbouncer":
        request.applymarker(pytest.mark.xfail(reason=script.differs))
    direct, pooled = both
    want = differential.play(direct, script, dribble)
    got = differential.play(pooled, script, dribble)
    assert got == want
