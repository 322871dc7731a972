/* Included before ggml-cpu.c on x86: makes its spin loops yield the processor after a few microseconds.
 *
 * ggml's barrier spins on `_mm_pause()` without bound. With as many busy processes as cores, a waiting thread can burn
 * the whole time slice that the thread it waits for needs; `sched_yield` every 128 pauses (5 to 20 us) hands it over.
 * Undisturbed, a barrier is passed long before that and nothing changes. */
#ifndef GRACEKV_RELAX_H
#define GRACEKV_RELAX_H

#include <immintrin.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>

static inline void gracekv_relax(void) {
    static _Thread_local unsigned n_pause;
    __builtin_ia32_pause();
    if ((++n_pause & 127) == 0) {
        sched_yield();
    }
}

#define _mm_pause gracekv_relax
#endif

#endif
