/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Steps of a login that helper threads do: slow hashes, PAM, LDAP, the name of
 * an account. The client or server waits in STEP_WORK; if it leaves meanwhile
 * the answer finds nobody and is dropped. On its worker. */
#ifndef POOL_AUTH_WORK_H
#define POOL_AUTH_WORK_H

#include "pool/impl.h"

struct auth_server;

/* auth_client_work(); the dialogue itself goes along. client_auth_hashed()
 * follows. */
void auth_work_hash(struct client *c);

/* Checks auth_client_password() with the login's method, PAM or LDAP.
 * client_auth_answered() follows. */
void auth_work_ask(struct client *c);

/* Whose process is at the other end of the Unix socket. client_auth_peer()
 * follows. */
void auth_work_name_peer(struct client *c);

/* The same for a login to a server; takes the dialogue. server_login_hashed()
 * gives it back. */
void auth_work_hash_server(struct server *s, struct auth_server *auth);

#endif
