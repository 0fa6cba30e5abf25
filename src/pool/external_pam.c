/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <security/pam_appl.h>
#include <stdlib.h>

#include "base/slice.h"
#include "pool/external.h"

enum { PAM_MESSAGES_MAX = 32 };

/* The answer to one prompt, from malloc; NULL for what is only shown. */
static char *answer_to(const struct pam_message *m,
                       const struct external_question *q)
{
    if (m->msg_style == PAM_PROMPT_ECHO_OFF)
        return mem_strdup(q->password);
    if (m->msg_style == PAM_PROMPT_ECHO_ON)
        return mem_strdup(q->user);
    return NULL;
}

static int converse(int n, const struct pam_message **messages,
                    struct pam_response **out, void *arg)
{
    const struct external_question *q = arg;
    if (n < 1 || n > PAM_MESSAGES_MAX)
        return PAM_CONV_ERR;
    /* PAM frees it. */
    struct pam_response *r = mem_new_array((size_t)n, sizeof *r);
    for (int i = 0; i < n; i++)
        r[i].resp = answer_to(messages[i], q);
    *out = r;
    return PAM_SUCCESS;
}

static int ask(pam_handle_t *pam, const struct external_question *q,
               struct err *e)
{
    const char *step = "pam_set_item";
    int rc = pam_set_item(pam, PAM_RHOST, q->host);
    if (rc == PAM_SUCCESS) {
        step = "pam_authenticate";
        rc = pam_authenticate(pam, PAM_SILENT);
    }
    if (rc == PAM_SUCCESS) {
        step = "pam_acct_mgmt";
        rc = pam_acct_mgmt(pam, PAM_SILENT);
    }
    if (rc != PAM_SUCCESS)
        err_set(e, ERR_AUTH, "%s: %s", step, pam_strerror(pam, rc));
    return rc;
}

int external_ask_pam(const struct external_question *q, struct err *e)
{
    struct pam_conv conv = {converse, (void *)(uintptr_t)q};
    pam_handle_t *pam = NULL;
    int rc = pam_start(q->service, q->user, &conv, &pam);
    if (rc != PAM_SUCCESS)
        return err_set(e, ERR_AUTH, "pam_start: error %d", rc);
    rc = ask(pam, q, e);
    pam_end(pam, rc);
    return rc == PAM_SUCCESS ? 0 : ERR_AUTH;
}
