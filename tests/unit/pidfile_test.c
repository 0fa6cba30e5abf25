/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The pidfile. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "main/pidfile.h"

static char folder[] = "/tmp/pidfile_test.XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/pid", folder);
    return 0;
}

static int remove_folder(void **state)
{
    return rmdir(folder); /* fails unless the tests left it empty */
}

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_none(void **state)
{
    struct err e;
    assert_int_equal(pidfile_check(NULL, &e), 0);
    assert_int_equal(pidfile_check("", &e), 0);
    assert_int_equal(pidfile_write("", &e), 0);
    pidfile_remove(NULL);
    assert_int_equal(pidfile_check(path, &e), 0);
}

static void test_write(void **state)
{
    struct err e;
    int pid = 0;
    assert_int_equal(pidfile_write(path, &e), 0);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    fclose(f);
    assert_int_equal(pid, getpid());
    assert_int_not_equal(pidfile_write(path, &e), 0);
    assert_non_null(strstr(e.text, "another pooler"));
    pidfile_remove(path);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* The number of a process that has ended, and been waited for. */
static int ended_pid(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void test_stale(void **state)
{
    struct err e;
    char text[32];
    snprintf(text, sizeof text, "%d\n", ended_pid());
    put(text);
    assert_int_equal(pidfile_check(path, &e), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    /* ours, though we have written none: left by our number's last owner */
    snprintf(text, sizeof text, "%d\n", getpid());
    put(text);
    assert_int_equal(pidfile_check(path, &e), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Has ended, but its parent has not looked yet. */
static void test_zombie(void **state)
{
    struct err e;
    char text[32];
    siginfo_t info;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    snprintf(text, sizeof text, "%d\n", (int)pid);
    put(text);
    assert_int_equal(pidfile_check(path, &e), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_in_use(void **state)
{
    static const char *const text[] = {"1\n", "", "garbage\n", "-7\n",
                                       "99999999999999999999\n"};
    struct err e;
    for (size_t i = 0; i < ARRAY_SIZE(text); i++) {
        put(text[i]);
        assert_int_not_equal(pidfile_check(path, &e), 0);
        assert_non_null(strstr(e.text, "exists"));
    }
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),   cmocka_unit_test(test_write),
        cmocka_unit_test(test_stale),  cmocka_unit_test(test_zombie),
        cmocka_unit_test(test_in_use),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
