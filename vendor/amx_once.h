/* Included before ggml-cpu/amx/amx.cpp, which asks the system for the use of AMX before every product of every thread: hundreds of
 * system calls per token. The answer is that of the process, so one is enough. */
#ifndef GRACEKV_AMX_ONCE_H
#define GRACEKV_AMX_ONCE_H

#if defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

static inline long gracekv_syscall_once(long number, long operation, long feature) {
    static const long answer = syscall(number, operation, feature);
    return answer;
}

#define syscall(number, operation, feature) gracekv_syscall_once(number, operation, feature)

#endif

#endif
