/* Included before ggml-cpu.c on x86: a thread that has spun for some 20 us gives up the processor.
 *
 * ggml's barrier spins on `_mm_pause()` without bound. Beside other busy processes a waiting thread can so burn the time
 * slice that the thread it waits for needs. Yielding is no remedy: behind a busy process a thread that has yielded waits
 * for a whole slice of some milliseconds, while one that slept 50 us is scheduled again at once. Undisturbed, nearly
 * every wait ends before the first sleep. A wait begins anew when work lay between two pauses. */
#ifndef GRACEKV_RELAX_H
#define GRACEKV_RELAX_H

#include <immintrin.h>

#if defined(__unix__) || defined(__APPLE__)
#include <time.h>

/* In ticks of the time stamp counter, 1 to 4 per ns. */
#define GRACEKV_WORK 1000ull
#define GRACEKV_SPIN 65536ull

static inline void gracekv_relax(void) {
    static _Thread_local unsigned long long begin, last;
    const unsigned long long now = __builtin_ia32_rdtsc();
    if (now - last > GRACEKV_WORK) {
        begin = now;
    }
    last = now;
    __builtin_ia32_pause();
    if (now - begin > GRACEKV_SPIN) {
        const struct timespec shortest = {0, 1000};
        nanosleep(&shortest, 0);
        last = __builtin_ia32_rdtsc();
    }
}

#define _mm_pause gracekv_relax
#endif

#endif
