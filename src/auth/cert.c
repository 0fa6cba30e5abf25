/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/cert.h"

#include <openssl/bio.h>

int cert_common_name(X509 *cert, char out[CERT_NAME_MAX + 1], struct err *e)
{
    X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (at < 0)
        return err_set(e, ERR_AUTHZ,
                       "the client certificate has no common name");
    ASN1_STRING *value =
        X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    unsigned char *utf8 = NULL;
    int n = ASN1_STRING_to_UTF8(&utf8, value);
    int rc = 0;
    if (n < 1)
        rc = err_set(e, ERR_AUTHZ,
                     "the client certificate's common name is not text");
    else if (memchr(utf8, 0, (size_t)n))
        rc = err_set(e, ERR_AUTHZ,
                     "the client certificate's common name has a zero byte");
    else if (!slice_copy(slice_of(utf8, (size_t)n), out, CERT_NAME_MAX + 1))
        rc = err_set(e, ERR_AUTHZ,
                     "the client certificate's common name is longer than %d "
                     "bytes",
                     CERT_NAME_MAX);
    OPENSSL_free(utf8);
    return rc;
}

void cert_subject(X509 *cert, char *out, size_t cap)
{
    BIO *b = BIO_new(BIO_s_mem());
    int n = -1;
    if (b && X509_NAME_print_ex(b, X509_get_subject_name(cert), 0,
                                XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB) >= 0)
        n = BIO_read(b, out, (int)MIN(cap - 1, (size_t)INT32_MAX));
    out[n > 0 ? n : 0] = 0;
    BIO_free(b);
}

int cert_check_role(X509 *cert, struct slice role, cert_map_cb map,
                    void *map_arg, struct err *e)
{
    char name[CERT_NAME_MAX + 1];
    int rc = cert_common_name(cert, name, e);
    if (rc < 0)
        return rc;
    if (map ? map(map_arg, slice_str(name), role) : slice_is(role, name))
        return 0;
    return err_set(e, ERR_AUTHZ,
                   "the client certificate is for \"%s\", not for role "
                   "\"" SLICE_FMT "\"",
                   name, SLICE_ARG(role));
}
