// SPDX-License-Identifier: ISC
// Copyright (c) 2026 The pgbraid authors
//
// node-postgres against whatever PG* variables point to: simple, prepared and
// parallel queries, errors, transactions, LISTEN is left to session mode.
'use strict';
const assert = require('assert');
const { Pool, Client } = require('pg');

const ssl = process.env.PGSSLROOTCERT
    ? { ca: require('fs').readFileSync(process.env.PGSSLROOTCERT),
        servername: 'localhost' }
    : false;

async function prepared(client, i)
{
    const got = await client.query({
        name: 'add-' + (i % 7),
        text: `SELECT $1::int + ${i % 7} AS sum`,
        values: [i],
    });
    assert.strictEqual(got.rows[0].sum, i + (i % 7));
}

async function main()
{
    const client = new Client({ ssl });
    await client.connect();
    const got = await client.query('SELECT $1::text AS t, $2::int[] AS a',
        ['hello', [1, 2]]);
    assert.deepStrictEqual(got.rows[0], { t: 'hello', a: [1, 2] });
    await assert.rejects(client.query('SELECT 1/0'), { code: '22012' });
    await client.query('BEGIN');
    await assert.rejects(client.query('SELEC'), { code: '42601' });
    await client.query('ROLLBACK');
    await client.end();

    const pool = new Pool({ ssl, max: 20 });
    const work = [];
    for (let i = 0; i < 400; i++)
        work.push(prepared(pool, i));
    await Promise.all(work);
    await pool.end();
    console.log('ok');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
