/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* tls-server-end-point of RFC 5929: the hash of the server's certificate that
 * SCRAM-SHA-256-PLUS binds to. Pure; any thread. */
#ifndef AUTH_TLS_BINDING_H
#define AUTH_TLS_BINDING_H

#include <openssl/x509.h>

#include "base/base.h"

enum { TLS_BINDING_MAX = 64 };

/* With the hash of the certificate's signature, SHA-256 in place of MD5 and
 * SHA-1. ERR_UNSUPPORTED when the signature names no hash (Ed25519): then there
 * is no channel binding. */
NODISCARD int tls_binding_server_end_point(X509 *cert,
                                           uint8_t out[TLS_BINDING_MAX],
                                           size_t *out_n);

#endif
