/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/tls_binding.h"

#include <openssl/evp.h>

#include "base/err.h"

int tls_binding_server_end_point(X509 *cert, uint8_t out[TLS_BINDING_MAX],
                                 size_t *out_n)
{
    int hash = NID_undef;
    unsigned n = 0;
    if (!X509_get_signature_info(cert, &hash, NULL, NULL, NULL))
        return ERR_UNSUPPORTED;
    if (hash == NID_md5 || hash == NID_sha1)
        hash = NID_sha256;
    const EVP_MD *md = EVP_get_digestbynid(hash);
    if (!md || EVP_MD_get_size(md) > TLS_BINDING_MAX ||
        !X509_digest(cert, md, out, &n))
        return ERR_UNSUPPORTED;
    *out_n = n;
    return 0;
}
