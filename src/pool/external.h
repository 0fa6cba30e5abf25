/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Questions to services outside: they block, so they are for helper threads.
 * Which of them this build knows is decided by meson. Any thread. */
#ifndef POOL_EXTERNAL_H
#define POOL_EXTERNAL_H

#include <sys/types.h>

#include "base/err.h"

struct ldap_options;

enum { EXTERNAL_NAME_MAX = 256 };

struct external_question {
    const char *user, *password;
    const char *host;    /* the client's address */
    const char *service; /* PAM: name of its file */
};

/* 0: the password is right. ERR_AUTH: it is not, or the service cannot say;
 * the text is for the log. ERR_UNSUPPORTED: not in this build. */
NODISCARD int external_ask_pam(const struct external_question *q,
                               struct err *e);
NODISCARD int external_ask_ldap(const struct external_question *q,
                                const struct ldap_options *o, struct err *e);

/* The system's name of an account. */
NODISCARD int external_user_name(uid_t uid, char out[EXTERNAL_NAME_MAX],
                                 struct err *e);

#endif
