/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* From a verified client certificate to the role it stands for. The chain is
 * TLS's business. Pure; any thread. */
#ifndef AUTH_CERT_H
#define AUTH_CERT_H

#include <openssl/x509.h>

#include "base/err.h"
#include "base/slice.h"

enum { CERT_NAME_MAX = 255 };

/* The subject's first common name, as UTF-8. Fails without one, on an embedded
 * NUL, or when it is too long. */
NODISCARD int cert_common_name(X509 *cert, char out[CERT_NAME_MAX + 1],
                               struct err *e);

/* The subject in RFC 2253 form, for logs and ident maps; cut when long. */
void cert_subject(X509 *cert, char *out, size_t cap);

/* Maps a certificate's name to whether it may be role; for ident maps. */
typedef bool (*cert_map_cb)(void *arg, struct slice name, struct slice role);

/* 0 when the certificate may log in as role: its common name equals it or, with
 * a map, the map says so. The error is for the log. */
NODISCARD int cert_check_role(X509 *cert, struct slice role, cert_map_cb map,
                              void *map_arg, struct err *e);

#endif
