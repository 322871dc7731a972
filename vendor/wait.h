/* How a thread waits at ggml's barrier; included before ggml-cpu.c, whose loop `CMakeLists.txt` replaces by these calls.
 *
 * ggml spins without bound, and OpenMP, which llama.cpp waits with, for about a millisecond before it sleeps. Beside another busy
 * process both burn time slices (some 3 ms) that the thread they wait for needs: a token takes a tenth of a second and
 * more. Here a thread that has waited for 10 us offers its processor to whoever else wants it, again and again: the late
 * thread, if it stands in the same queue, comes on at once, and if it does not the offer costs a system call. Such a thread also asks
 * for the shortest time slice (Linux 6.12 and later have one per thread): its share of the processor stays the same, but it comes
 * on again after a tenth of a millisecond instead of three (beside a busy process on one of two cores 79 to 97 tokens/s
 * became 89 to 115, of 270 undisturbed). It sleeps only after several milliseconds. Sleeping earlier was measured to be worse on Linux 6.18: threads that sleep and wake each other at every barrier
 * are moved to one processor (two threads then got 48 tokens/s where one got 113, and two that spin 80 to 90). */
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
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Pauses between looks at the clock (each takes 10 to 60 ns, depending on the processor); how long a thread waits before it
 * offers its processor, and before it sleeps. */
enum {
    GRACEKV_PAUSES = 16,
    GRACEKV_OFFER_NS = 10000,
    GRACEKV_SPIN_NS = 10000000,
    GRACEKV_SLICE_NS = 100000,
};

static atomic_int gracekv_n_sleeping;

static inline long long gracekv_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* The system's `struct sched_attr` in its first version; the C libraries lack it, and Linux's header for it cannot stand beside
 * theirs. */
struct gracekv_sched_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* Asks for short time slices for this thread, once. Policy and nice value stay as they are; a kernel that knows no such slices ignores
 * the number, and one that refuses it changes nothing. */
static inline void gracekv_shorten_slice(void) {
    static _Thread_local bool is_done;
    if (is_done) {
        return;
    }
    is_done = true;
    struct gracekv_sched_attr attr = {0};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) == 0 && attr.policy == SCHED_OTHER) {
        attr.runtime = GRACEKV_SLICE_NS;
        syscall(SYS_sched_setattr, 0, &attr, 0);
    }
}

/* Returns when `*word` differs from `seen`. */
static inline void gracekv_wait(atomic_int * word, int seen) {
    long long now = 0, end_ns = 0, offer_ns = 0;
    do {
        for (int i = 0; i < GRACEKV_PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_relaxed) != seen) {
                return;
            }
            GRACEKV_PAUSE();
        }
        now = gracekv_now_ns();
        if (end_ns == 0) {
            end_ns = now + GRACEKV_SPIN_NS;
            offer_ns = now + GRACEKV_OFFER_NS;
        } else if (now > offer_ns) {
            gracekv_shorten_slice();
            sched_yield();
            offer_ns = gracekv_now_ns() + GRACEKV_OFFER_NS;
        }
    } while (now < end_ns);
    atomic_fetch_add(&gracekv_n_sleeping, 1);
    while (atomic_load(word) == seen) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, (void *) 0, (void *) 0, 0);
    }
    atomic_fetch_sub(&gracekv_n_sleeping, 1);
}

/* After `*word` was changed. */
static inline void gracekv_wake(atomic_int * word) {
    if (atomic_load(&gracekv_n_sleeping) > 0) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, (void *) 0, (void *) 0, 0);
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
