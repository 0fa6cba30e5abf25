/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a process that crashes leaves in its log file; each crash is that of a
 * child whose standard error leads nowhere, as a daemon's does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/altstack.h"
#include "base/base.h"
#include "main/crash.h"

static char log_path[64];
static char text[65536];

static int set_up(void **state)
{
    strcpy(log_path, "/tmp/crash_test.XXXXXX");
    int fd = mkstemp(log_path);
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int tear_down(void **state)
{
    unlink(log_path);
    return 0;
}

static void prepare_child(void)
{
    static const int number[] = {SIGSEGV, SIGABRT};
    struct rlimit no_core = {0, 0};
    int null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    close(null);
    setrlimit(RLIMIT_CORE, &no_core);
    /* cmocka's own would come first. */
    for (size_t i = 0; i < ARRAY_SIZE(number); i++)
        signal(number[i], SIG_DFL);
    crash_install();
    crash_set_logfile(log_path);
}

/* Runs fn in a child; what the log says then. */
static int crash(void (*fn)(void))
{
    pid_t pid = fork();
    int status;
    assert_true(pid >= 0);
    if (pid == 0) {
        prepare_child();
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    int fd = open(log_path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n >= 0);
    close(fd);
    text[n] = 0;
    return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
}

static void expect(const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in the log: %s", part, text);
}

static void fail_a_check(void)
{
    volatile int two = 2;
    must(two + two == 5);
}

static void test_must(void **state)
{
    assert_int_equal(crash(fail_a_check), SIGABRT);
    expect("internal error at ");
    expect("crash_test.c:");
    expect(": two + two == 5 is false\n");
    expect("SIGABRT");
    expect("backtrace:\n");
}

static void run_out_of_memory(void)
{
    volatile size_t too_much = SIZE_MAX / 2;
    char *volatile p = mem_new_array(too_much, 2);
    (void)p;
}

static void test_out_of_memory(void **state)
{
    if (crash(run_out_of_memory) != SIGABRT)
        skip(); /* a sanitizer says it first */
    expect("pgbraid: out of memory\n");
}

/* Deep, and not to be turned into a loop. */
static int __attribute__((noinline)) dig(volatile char *above, int depth)
{
    volatile char here[512];
    here[0] = (char)(above[0] + 1);
    if (depth == INT32_MAX)
        return 0;
    return dig(here, depth + 1) + here[0];
}

static void *overflow(void *arg)
{
    volatile char start[1] = {0};
    altstack_start();
    (void)dig(start, 0);
    altstack_stop();
    return NULL;
}

static void overflow_in_a_thread(void)
{
    pthread_t t;
    if (pthread_create(&t, NULL, overflow, NULL) == 0)
        pthread_join(t, NULL);
}

static void overflow_here(void)
{
    struct rlimit small = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_STACK, &small);
    (void)overflow(NULL);
}

static void test_stack_overflow(void **state)
{
    if (crash(overflow_in_a_thread) != SIGSEGV)
        skip(); /* a sanitizer says it first */
    expect("SIGSEGV");
    expect("backtrace:\n");
    assert_int_equal(crash(overflow_here), SIGSEGV);
    expect("SIGSEGV");
}

static void test_start_and_stop(void **state)
{
    stack_t s;
    altstack_stop();
    altstack_start();
    altstack_start();
    assert_int_equal(sigaltstack(NULL, &s), 0);
    assert_false(s.ss_flags & SS_DISABLE);
    altstack_stop();
    altstack_stop();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_must),
        TEST(test_out_of_memory),
        TEST(test_stack_overflow),
        TEST(test_start_and_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
