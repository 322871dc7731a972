/* How a thread waits at ggml's barrier; included before ggml-cpu.c, whose loop `CMakeLists.txt` replaces by these calls.
 *
 * ggml spins without bound. Beside other busy processes a waiting thread so burns the time slice that the thread it waits
 * for needs, and a token takes seconds. Here it spins for 0.4 ms, longer than nearly every wait on a quiet machine (by the
 * clock, as a pause takes 10 to 60 ns, depending on the processor), and then sleeps until it is woken. Whoever comes a
 * millisecond late looks whether the system took the processor from it (an involuntary switch). Three such switches close
 * together mean that another process wants it: for a while threads
 * then sleep at once, because whoever sleeps is scheduled before a process that never does. A hypervisor that lends
 * the processor to another machine makes threads late without a switch, and there early sleep only makes it worse: a
 * processor that idles is lent out first. */
#ifndef GRACEKV_WAIT_H
#define GRACEKV_WAIT_H

#include <stdatomic.h>

#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
#include <immintrin.h>
#define GRACEKV_PAUSE() _mm_pause()
#elif defined(__aarch64__) && !defined(_MSC_VER)
#define GRACEKV_PAUSE() __asm__ volatile("yield" ::: "memory")
#else
#define GRACEKV_PAUSE() ((void) 0)
#endif

#if defined(__linux__)

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef RUSAGE_THREAD
#define RUSAGE_THREAD 1
#endif

/* Pauses between looks at the clock, all there are before sleeping on a busy machine; how long they go on on a quiet one;
 * what another thread's slice takes; how close together how many switches make a busy machine; and for how many waits (about
 * ten tokens) that is remembered. */
enum {
    GRACEKV_PAUSES = 16,
    GRACEKV_SPIN_NS = 400000,
    GRACEKV_LONG_NS = 1200000,
    GRACEKV_CLOSE_NS = 20000000,
    GRACEKV_SWITCHES = 3,
    GRACEKV_BUSY_WAITS = 4000,
};

static atomic_int gracekv_n_sleeping;
static atomic_int gracekv_n_busy;
static atomic_int gracekv_n_switch;
static atomic_llong gracekv_sleep_ns;
static atomic_llong gracekv_last_switch_ns;

static inline long long gracekv_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Returns when `*word` differs from `seen`. */
static inline void gracekv_wait(atomic_int * word, int seen) {
    const int n_busy = atomic_load_explicit(&gracekv_n_busy, memory_order_relaxed);
    if (n_busy > 0) {
        /* Two threads may count one wait; nothing depends on the number. */
        atomic_store_explicit(&gracekv_n_busy, n_busy - 1, memory_order_relaxed);
    }
    long long end_ns = 0;
    do {
        for (int i = 0; i < GRACEKV_PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != seen) {
                return;
            }
            GRACEKV_PAUSE();
        }
        end_ns = end_ns ? end_ns : gracekv_now_ns() + GRACEKV_SPIN_NS;
    } while (n_busy == 0 && gracekv_now_ns() < end_ns);
    if (atomic_fetch_add(&gracekv_n_sleeping, 1) == 0) {
        atomic_store(&gracekv_sleep_ns, gracekv_now_ns());
    }
    while (atomic_load(word) == seen) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, (void *) 0, (void *) 0, 0);
    }
    atomic_fetch_sub(&gracekv_n_sleeping, 1);
}

/* Notes whether the calling thread, for which others sleep, was made to give up its processor. In the busy state it looks
 * away: a thread that wakes up may push aside the one that woke it. */
static inline void gracekv_note_switch(void) {
    static _Thread_local long n_before;
    const long long now = gracekv_now_ns();
    struct rusage usage;
    if (atomic_load(&gracekv_n_busy) > 0 || now - atomic_load(&gracekv_sleep_ns) < GRACEKV_LONG_NS
        || getrusage(RUSAGE_THREAD, &usage) != 0 || usage.ru_nivcsw == n_before) {
        return;
    }
    n_before = usage.ru_nivcsw;
    const long long last = atomic_exchange(&gracekv_last_switch_ns, now);
    const int n_switch = now - last > GRACEKV_CLOSE_NS ? 1 : atomic_load(&gracekv_n_switch) + 1;
    atomic_store(&gracekv_n_switch, n_switch);
    if (n_switch >= GRACEKV_SWITCHES) {
        atomic_store_explicit(&gracekv_n_busy, GRACEKV_BUSY_WAITS, memory_order_relaxed);
    }
}

/* After `*word` was changed. */
static inline void gracekv_wake(atomic_int * word) {
    if (atomic_load(&gracekv_n_sleeping) > 0) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, (void *) 0, (void *) 0, 0);
        gracekv_note_switch();
    }
}

#else

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define GRACEKV_YIELD() sched_yield()
#else
#define GRACEKV_YIELD() ((void) 0)
#endif

static inline void gracekv_wait(atomic_int * word, int seen) {
    for (unsigned i = 1; atomic_load_explicit(word, memory_order_relaxed) == seen; i++) {
        GRACEKV_PAUSE();
        if (i % 4096 == 0) {
            GRACEKV_YIELD();
        }
    }
}

static inline void gracekv_wake(atomic_int * word) {
    (void) word;
}

#endif

#endif
