// Prints sampler traces of llama.cpp's own code (src/llama-sampler.cpp is included as it stands).
#include "llama-sampler.cpp"
#include <cstdio>

struct Case { const char * name; uint32_t seed; int n_vocab, n_steps; int top_k; float top_p, min_p, temp; int last_n; float repeat, freq, present; std::vector<llama_logit_bias> bias; };

static uint32_t state;
static float logit() { state = state*1664525u + 1013904223u; float u = (float)(state >> 8) / 16777216.0f; return u*u*u*18.0f - 9.0f; }

int main() {
    const Case cases[] = {
        {"defaults",     42, 32000, 64, 40, 0.95f, 0.05f, 0.8f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"hot",          12, 16000, 64, 40, 0.95f, 0.05f, 1.7f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"temp_one",      7,  5000, 64, 100, 1.0f, 0.0f, 1.0f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"top_p_only",    1,  5000, 64, 0, 0.9f, 0.0f, 1.0f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"top_p_small",   1,   500, 64, 0, 0.7f, 0.0f, 1.0f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"min_p_only",  123,  5000, 64, 0, 1.0f, 0.1f, 1.2f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"plain",      2024,  5000, 64, 0, 1.0f, 0.0f, 1.0f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"penalties",    99,    50, 64, 40, 0.95f, 0.05f, 0.8f, 16, 1.3f, 0.2f, 0.4f, {}},
        {"penalties_long",3,    20, 64, 0, 1.0f, 0.0f, 0.9f, 64, 1.1f, 0.0f, 0.1f, {}},
        {"bias",          5,    50, 64, 40, 0.95f, 0.05f, 0.8f, 64, 1.0f, 0.0f, 0.0f, {{3, 6.0f}, {7, -INFINITY}, {3, 1.5f}}},
        {"greedy",       42, 32000, 64, 40, 0.95f, 0.05f, 0.0f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"greedy_penalties",42,  50, 64, 40, 0.95f, 0.05f, 0.0f, 8, 1.5f, 0.1f, 0.1f, {}},
        {"top_k_one",    42,  5000, 16, 1, 0.95f, 0.05f, 0.8f, 64, 1.0f, 0.0f, 0.0f, {}},
        {"top_k_wide",   42,  5000, 64, 400, 0.99f, 0.001f, 1.5f, 64, 1.0f, 0.0f, 0.0f, {}},
    };
    printf("[\n");
    bool first = true;
    for (const auto & c : cases) {
        std::vector<llama_sampler *> chain;
        if (!c.bias.empty()) chain.push_back(llama_sampler_init_logit_bias(c.n_vocab, c.bias.size(), c.bias.data()));
        chain.push_back(llama_sampler_init_penalties(c.n_vocab, c.last_n, c.repeat, c.freq, c.present));
        chain.push_back(llama_sampler_init_top_k(c.top_k));
        chain.push_back(llama_sampler_init_top_p(c.top_p, 0));
        chain.push_back(llama_sampler_init_min_p(c.min_p, 0));
        chain.push_back(llama_sampler_init_temp_ext(c.temp, 0.0f, 1.0f));
        chain.push_back(llama_sampler_init_dist(c.seed));
        state = c.seed;
        printf("%s  {\"name\": \"%s\", \"seed\": %u, \"n_vocab\": %d, \"top_k\": %d, \"top_p\": %.9g, \"min_p\": %.9g, \"temperature\": %.9g, \"repeat_last_n\": %d, \"repeat_penalty\": %.9g, \"frequency_penalty\": %.9g, \"presence_penalty\": %.9g,\n   \"logit_bias\": [",
            first ? "" : ",\n", c.name, c.seed, c.n_vocab, c.top_k, c.top_p, c.min_p, c.temp, c.last_n, c.repeat, c.freq, c.present);
        for (size_t i = 0; i < c.bias.size(); ++i) { if (std::isinf(c.bias[i].bias)) printf("%s[%d, null]", i ? ", " : "", c.bias[i].token); else printf("%s[%d, %.9g]", i ? ", " : "", c.bias[i].token, c.bias[i].bias); }
        printf("],\n   \"tokens\": [");
        first = false;
        std::vector<llama_token_data> cur(c.n_vocab);
        for (int step = 0; step < c.n_steps; ++step) {
            for (int i = 0; i < c.n_vocab; ++i) cur[i] = { i, logit(), 0.0f };
            llama_token_data_array arr = { cur.data(), cur.size(), -1, false };
            for (auto * s : chain) llama_sampler_apply(s, &arr);
            const llama_token t = arr.data[arr.selected].id;
            for (auto * s : chain) llama_sampler_accept(s, t);
            printf("%s%d", step ? ", " : "", t);
        }
        printf("]}");
    }
    printf("\n]\n");
}
