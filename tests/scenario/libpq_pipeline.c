/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* libpq's pipeline mode against whatever PG* variables point to: batches with
 * prepared statements, an error in the middle, and single-row mode. Says "ok"
 * or what went wrong. */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 200 };

static PGconn *conn;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, PQerrorMessage(conn));
    exit(1);
}

/* The next result must have this status; the NULL after it is eaten. */
static void expect(ExecStatusType status, const char *value)
{
    PGresult *res = PQgetResult(conn);
    if (!res || PQresultStatus(res) != status)
        fail(res ? PQresStatus(PQresultStatus(res)) : "no result");
    if (value && strcmp(PQgetvalue(res, 0, 0), value) != 0)
        fail("wrong value");
    PQclear(res);
    if (status != PGRES_PIPELINE_SYNC && PQgetResult(conn))
        fail("more than one result");
}

static void send_number(const char *statement, int number)
{
    char text[16];
    const char *values[] = {text};
    snprintf(text, sizeof(text), "%d", number);
    if (!PQsendQueryPrepared(conn, statement, 1, values, NULL, NULL, 0))
        fail("send");
}

static void expect_number(int number)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    expect(PGRES_TUPLES_OK, text);
}

static void run_batches(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        send_number("twice", i);
        if (i % 10 == 9 && !PQpipelineSync(conn))
            fail("sync");
    }
    for (int i = 0; i < ROUNDS; i++) {
        expect_number(2 * i);
        if (i % 10 == 9)
            expect(PGRES_PIPELINE_SYNC, NULL);
    }
}

static void run_error(void)
{
    send_number("twice", 1);
    send_number("divide", 0);
    send_number("twice", 2);
    if (!PQpipelineSync(conn))
        fail("sync");
    send_number("twice", 3);
    if (!PQpipelineSync(conn))
        fail("sync");
    expect_number(2);
    expect(PGRES_FATAL_ERROR, NULL);
    expect(PGRES_PIPELINE_ABORTED, NULL);
    expect(PGRES_PIPELINE_SYNC, NULL);
    expect_number(6);
    expect(PGRES_PIPELINE_SYNC, NULL);
}

int main(void)
{
    conn = PQconnectdb("");
    if (PQstatus(conn) != CONNECTION_OK)
        fail("connect");
    if (!PQenterPipelineMode(conn))
        fail("pipeline mode");
    if (!PQsendPrepare(conn, "twice", "SELECT 2 * $1::int", 1, NULL) ||
        !PQsendPrepare(conn, "divide", "SELECT 1 / $1::int", 1, NULL) ||
        !PQpipelineSync(conn))
        fail("prepare");
    expect(PGRES_COMMAND_OK, NULL);
    expect(PGRES_COMMAND_OK, NULL);
    expect(PGRES_PIPELINE_SYNC, NULL);
    for (int i = 0; i < 20; i++) {
        run_batches();
        run_error();
    }
    if (!PQexitPipelineMode(conn))
        fail("exit");
    PQfinish(conn);
    puts("ok");
    return 0;
}
