// Writes logits of llama.cpp for a model: 64 tokens at positions 0 to 63, of each every STRIDE-th logit, as f32 in native order:
// tests/golden/logits/*.f32 (tests/golden/README.md has the commands). Keys and values are f32 and attention is computed without
// fusing, so that what is left to differ is the order of sums.
#include "llama.h"
#include <cstdio>
#include <vector>

static const int N_TOKENS = 64, STRIDE = 20;

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: tiny_logits MODEL.gguf OUT.f32\n");
        return 1;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) fputs(text, stderr);
    }, nullptr);
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 1;
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    cp.n_batch = cp.n_ubatch = N_TOKENS;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_batch batch = llama_batch_init(N_TOKENS, 0, 1);
    batch.n_tokens = N_TOKENS;
    for (int i = 0; i < N_TOKENS; ++i) {
        batch.token[i] = (llama_token) ((7919LL*i + 104729) % n_vocab);
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(ctx, batch) != 0) return 1;
    std::vector<float> out;
    for (int i = 0; i < N_TOKENS; ++i) {
        const float * logits = llama_get_logits_ith(ctx, i);
        for (int id = 0; id < n_vocab; id += STRIDE) out.push_back(logits[id]);
    }
    FILE * file = fopen(argv[2], "wb");
    if (!file || fwrite(out.data(), sizeof(float), out.size(), file) != out.size() || fclose(file) != 0) return 1;
    return 0;
}
