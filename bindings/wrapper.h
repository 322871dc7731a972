/* What bindgen sees; bindings/allow.txt names what is taken from it. */
#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
