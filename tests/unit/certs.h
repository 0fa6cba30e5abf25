/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Certificates made on the spot, for unit tests. Files of a folder under /tmp
 * that certs_remove() takes away again. */
#ifndef TESTS_UNIT_CERTS_H
#define TESTS_UNIT_CERTS_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

struct cert {
    X509 *cert;
    EVP_PKEY *key;
    char cert_file[64], key_file[64];
};

static char certs_dir[] = "/tmp/pgbraid-certs-XXXXXX";

static void certs_make_dir(void)
{
    must(mkdtemp(certs_dir));
}

static void cert_write(struct cert *c, const char *name)
{
    snprintf(c->cert_file, sizeof c->cert_file, "%s/%s.crt", certs_dir, name);
    snprintf(c->key_file, sizeof c->key_file, "%s/%s.key", certs_dir, name);
    FILE *f = fopen(c->cert_file, "w");
    must(f && PEM_write_X509(f, c->cert) && fclose(f) == 0);
    f = fopen(c->key_file, "w");
    must(f && fchmod(fileno(f), 0600) == 0);
    must(PEM_write_PrivateKey(f, c->key, NULL, NULL, 0, NULL, NULL) &&
         fclose(f) == 0);
}

static void cert_extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    must(ext && X509_add_ext(cert, ext, -1));
    X509_EXTENSION_free(ext);
}

/* Signed by ca, by itself when ca is NULL. names is "DNS:a,IP:1.2.3.4", NULL
 * for none. Valid from an hour ago for days_valid days. */
static struct cert cert_new(const char *file, const char *common_name,
                            const char *names, const struct cert *ca,
                            int days_valid)
{
    static long serial = 1;
    struct cert c = {.cert = X509_new(), .key = EVP_EC_gen("P-256")};
    X509_NAME *subject = X509_NAME_new();
    must(c.cert && c.key && subject);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                               (const unsigned char *)common_name, -1, -1, 0);
    X509_set_version(c.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c.cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c.cert), -3600L * 24 * 10);
    X509_gmtime_adj(X509_getm_notAfter(c.cert), 3600L * 24 * days_valid);
    X509_set_subject_name(c.cert, subject);
    X509_set_issuer_name(c.cert,
                         ca ? X509_get_subject_name(ca->cert) : subject);
    X509_set_pubkey(c.cert, c.key);
    if (!ca)
        cert_extend(c.cert, c.cert, NID_basic_constraints, "CA:TRUE");
    if (names)
        cert_extend(c.cert, ca ? ca->cert : c.cert, NID_subject_alt_name,
                    names);
    must(X509_sign(c.cert, ca ? ca->key : c.key, EVP_sha256()));
    X509_NAME_free(subject);
    cert_write(&c, file);
    return c;
}

static void cert_free(struct cert *c)
{
    unlink(c->cert_file);
    unlink(c->key_file);
    X509_free(c->cert);
    EVP_PKEY_free(c->key);
}

static void certs_remove_dir(void)
{
    rmdir(certs_dir);
}

#endif
