// Prints traces of llama.cpp's own samplers as JSON: tests/golden/sample/chain.json; with a vocabulary as argument, what its
// DRY sampler makes of sequence breakers: breakers.json (tests/golden/README.md has the commands).
// src/llama-sampler.cpp of llama.cpp is included as it stands, so that it is compiled without fused multiplications, as Rust is.
#include "llama-sampler.cpp"
#include <cstdio>

struct Params {
    uint32_t seed = 0;
    std::string samplers = "edskypmxt";
    float temperature = 0.8f, dynatemp_range = 0.0f, dynatemp_exponent = 1.0f;
    int top_k = 40;
    float top_p = 0.95f, min_p = 0.05f, top_n_sigma = -1.0f, typ_p = 1.0f, xtc_probability = 0.0f, xtc_threshold = 0.1f;
    int repeat_last_n = 64;
    float repeat_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
    float dry_multiplier = 0.0f, dry_base = 1.75f;
    int dry_allowed_length = 2, dry_penalty_last_n = 64;
    std::vector<std::vector<llama_token>> dry_breakers;
    float adaptive_target = -1.0f, adaptive_decay = 0.9f;
    int mirostat = 0;
    float mirostat_tau = 5.0f, mirostat_eta = 0.1f;
    std::vector<llama_logit_bias> logit_bias;
};

struct Case {
    const char * name;
    int n_vocab, n_steps;
    int power; // of the logits: higher is more peaked
    Params p;
};

static uint32_t state;

static float logit(int power) {
    state = state*1664525u + 1013904223u;
    const float u = (float)(state >> 8) / 16777216.0f;
    float x = 1.0f;
    for (int i = 0; i < power; ++i) x *= u;
    return x*18.0f - 9.0f;
}

static std::vector<llama_sampler *> chain(const Params & p, int n_vocab) {
    std::vector<llama_sampler *> chain;
    if (!p.logit_bias.empty()) chain.push_back(llama_sampler_init_logit_bias(n_vocab, p.logit_bias.size(), p.logit_bias.data()));
    if (p.mirostat) {
        chain.push_back(llama_sampler_init_temp(p.temperature));
        chain.push_back(p.mirostat == 1 ? llama_sampler_init_mirostat(n_vocab, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
                                        : llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta));
        return chain;
    }
    bool adaptive = false;
    for (char c : p.samplers) {
        switch (c) {
            case 'e': chain.push_back(llama_sampler_init_penalties(n_vocab, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)); break;
            case 'd': if (p.dry_multiplier != 0.0f) chain.push_back(llama_sampler_init_dry_testing(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, p.dry_breakers)); break;
            case 's': chain.push_back(llama_sampler_init_top_n_sigma(p.top_n_sigma)); break;
            case 'k': chain.push_back(llama_sampler_init_top_k(p.top_k)); break;
            case 'y': chain.push_back(llama_sampler_init_typical(p.typ_p, 0)); break;
            case 'p': chain.push_back(llama_sampler_init_top_p(p.top_p, 0)); break;
            case 'm': chain.push_back(llama_sampler_init_min_p(p.min_p, 0)); break;
            case 'x': chain.push_back(llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 0, p.seed)); break;
            case 't': chain.push_back(llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)); break;
            case 'a': adaptive = true; break;
        }
    }
    chain.push_back(adaptive ? llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, p.seed) : llama_sampler_init_dist(p.seed));
    return chain;
}

static void print_params(const Params & p) {
    const Params d;
    printf("{\"seed\": %u", p.seed);
#define FIELD(f, format) if (p.f != d.f) printf(", \"" #f "\": " format, p.f)
    if (p.samplers != d.samplers) printf(", \"samplers\": \"%s\"", p.samplers.c_str());
    FIELD(temperature, "%.9g"); FIELD(dynatemp_range, "%.9g"); FIELD(dynatemp_exponent, "%.9g");
    FIELD(top_k, "%d"); FIELD(top_p, "%.9g"); FIELD(min_p, "%.9g"); FIELD(top_n_sigma, "%.9g"); FIELD(typ_p, "%.9g");
    FIELD(xtc_probability, "%.9g"); FIELD(xtc_threshold, "%.9g");
    FIELD(repeat_last_n, "%d"); FIELD(repeat_penalty, "%.9g"); FIELD(frequency_penalty, "%.9g"); FIELD(presence_penalty, "%.9g");
    FIELD(dry_multiplier, "%.9g"); FIELD(dry_base, "%.9g"); FIELD(dry_allowed_length, "%d"); FIELD(dry_penalty_last_n, "%d");
    FIELD(adaptive_target, "%.9g"); FIELD(adaptive_decay, "%.9g");
    FIELD(mirostat, "%d"); FIELD(mirostat_tau, "%.9g"); FIELD(mirostat_eta, "%.9g");
#undef FIELD
    if (!p.dry_breakers.empty()) {
        printf(", \"dry_breakers\": [");
        for (size_t i = 0; i < p.dry_breakers.size(); ++i) {
            printf("%s[", i ? ", " : "");
            for (size_t j = 0; j < p.dry_breakers[i].size(); ++j) printf("%s%d", j ? ", " : "", p.dry_breakers[i][j]);
            printf("]");
        }
        printf("]");
    }
    if (!p.logit_bias.empty()) {
        printf(", \"logit_bias\": [");
        for (size_t i = 0; i < p.logit_bias.size(); ++i) {
            printf("%s[%d, ", i ? ", " : "", p.logit_bias[i].token);
            if (std::isinf(p.logit_bias[i].bias)) printf("null]"); else printf("%.9g]", p.logit_bias[i].bias);
        }
        printf("]");
    }
    printf("}");
}

// Designated initializers must stand in the order of the fields.
static std::vector<Case> cases() {
    return {
        {"defaults", 32000, 64, 3, {.seed = 42}},
        {"hot", 16000, 64, 3, {.seed = 12, .temperature = 1.7f}},
        {"temp_one", 5000, 64, 3, {.seed = 7, .temperature = 1.0f, .top_k = 100, .top_p = 1.0f, .min_p = 0.0f}},
        {"top_p_only", 5000, 64, 3, {.seed = 1, .temperature = 1.0f, .top_k = 0, .top_p = 0.9f, .min_p = 0.0f}},
        {"top_p_small", 500, 64, 3, {.seed = 1, .temperature = 1.0f, .top_k = 0, .top_p = 0.7f, .min_p = 0.0f}},
        {"min_p_only", 5000, 64, 3, {.seed = 123, .temperature = 1.2f, .top_k = 0, .top_p = 1.0f, .min_p = 0.1f}},
        {"plain", 5000, 64, 3, {.seed = 2024, .temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f}},
        {"penalties", 50, 64, 3, {.seed = 99, .repeat_last_n = 16, .repeat_penalty = 1.3f, .frequency_penalty = 0.2f, .presence_penalty = 0.4f}},
        {"penalties_long", 20, 64, 3, {.seed = 3, .temperature = 0.9f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .repeat_penalty = 1.1f, .presence_penalty = 0.1f}},
        {"bias", 50, 64, 3, {.seed = 5, .logit_bias = {{3, 6.0f}, {7, -INFINITY}, {3, 1.5f}}}},
        {"greedy", 32000, 64, 3, {.seed = 42, .temperature = 0.0f}},
        {"greedy_penalties", 50, 64, 3, {.seed = 42, .temperature = 0.0f, .repeat_last_n = 8, .repeat_penalty = 1.5f, .frequency_penalty = 0.1f, .presence_penalty = 0.1f}},
        {"top_k_one", 5000, 16, 3, {.seed = 42, .top_k = 1}},
        {"top_k_wide", 5000, 64, 3, {.seed = 42, .temperature = 1.5f, .top_k = 400, .top_p = 0.99f, .min_p = 0.001f}},

        {"top_n_sigma", 2000, 60, 3, {.seed = 11, .temperature = 1.5f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .top_n_sigma = 1.0f}},
        {"top_n_sigma_peaked", 2000, 60, 40, {.seed = 13, .temperature = 2.0f, .top_n_sigma = 2.5f}},
        {"top_n_sigma_bias", 50, 60, 3, {.seed = 17, .temperature = 1.5f, .top_n_sigma = 0.7f, .logit_bias = {{4, -INFINITY}, {9, -INFINITY}}}},
        {"typical", 2000, 60, 20, {.seed = 19, .temperature = 1.0f, .typ_p = 0.8f}},
        {"typical_all", 400, 60, 30, {.seed = 23, .temperature = 1.3f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .typ_p = 0.3f}},
        {"typical_then_top_p", 2000, 60, 30, {.seed = 24, .temperature = 1.0f, .top_k = 0, .top_p = 0.6f, .min_p = 0.02f, .typ_p = 0.95f}},
        {"xtc", 200, 60, 20, {.seed = 29, .xtc_probability = 0.5f, .xtc_threshold = 0.1f}},
        {"xtc_always", 200, 60, 20, {.seed = 31, .temperature = 1.5f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .xtc_probability = 1.0f, .xtc_threshold = 0.04f}},
        {"xtc_first", 200, 60, 20, {.seed = 37, .samplers = "xmt", .xtc_probability = 0.7f, .xtc_threshold = 0.05f}},
        {"dynatemp", 2000, 60, 20, {.seed = 41, .temperature = 1.0f, .dynatemp_range = 0.5f}},
        {"dynatemp_wide", 400, 60, 30, {.seed = 43, .temperature = 1.0f, .dynatemp_range = 1.5f, .dynatemp_exponent = 2.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f}},
        {"dynatemp_then_top_p", 400, 60, 30, {.seed = 47, .samplers = "tkp", .temperature = 0.9f, .dynatemp_range = 0.8f, .dynatemp_exponent = 0.5f, .top_p = 0.8f}},
        {"mirostat", 1000, 60, 60, {.seed = 53, .temperature = 1.0f, .mirostat = 1}},
        {"mirostat_low", 1000, 60, 100, {.seed = 59, .mirostat = 1, .mirostat_tau = 3.0f, .mirostat_eta = 0.3f}},
        {"mirostat_bias", 300, 60, 60, {.seed = 61, .temperature = 1.2f, .mirostat = 1, .logit_bias = {{7, 4.0f}}}},
        {"mirostat_2", 1000, 60, 20, {.seed = 67, .temperature = 1.0f, .mirostat = 2}},
        {"mirostat_2_low", 1000, 60, 30, {.seed = 71, .temperature = 0.7f, .mirostat = 2, .mirostat_tau = 2.0f, .mirostat_eta = 0.4f}},
        {"mirostat_2_penalties_ignored", 30, 60, 3, {.seed = 73, .repeat_penalty = 1.8f, .mirostat = 2, .mirostat_tau = 1.0f}},
        {"adaptive_p", 400, 60, 20, {.seed = 79, .samplers = "edskypmxta", .adaptive_target = 0.3f}},
        {"adaptive_p_min_p", 400, 60, 20, {.seed = 83, .samplers = "am", .min_p = 0.02f, .adaptive_target = 0.1f, .adaptive_decay = 0.5f}},
        {"adaptive_p_off", 400, 60, 20, {.seed = 89, .samplers = "kta"}},
        {"adaptive_p_one", 400, 20, 20, {.seed = 90, .samplers = "ka", .top_k = 1, .adaptive_target = 0.5f}},
        {"adaptive_p_masked", 60, 60, 8, {.seed = 91, .samplers = "sa", .top_n_sigma = 1.2f, .adaptive_target = 0.4f}},
        {"dry", 6, 60, 3, {.seed = 97, .temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .dry_multiplier = 2.0f}},
        {"dry_greedy", 4, 60, 1, {.seed = 101, .temperature = 0.0f, .dry_multiplier = 3.0f, .dry_base = 1.5f, .dry_allowed_length = 1}},
        {"dry_window", 5, 60, 2, {.seed = 103, .temperature = 0.0f, .dry_multiplier = 1.5f, .dry_allowed_length = 1, .dry_penalty_last_n = 12}},
        {"dry_breakers", 6, 60, 2, {.seed = 107, .temperature = 0.0f, .dry_multiplier = 4.0f, .dry_allowed_length = 1, .dry_breakers = {{2}, {3, 1}, {3, 1, 4}}}},
        {"dry_breakers_long", 5, 60, 2, {.seed = 109, .temperature = 0.5f, .dry_multiplier = 4.0f, .dry_allowed_length = 0, .dry_breakers = {{0, 1}, {0, 1, 2}, {4}}}},
        {"dry_long_repeats", 2, 60, 1, {.seed = 113, .temperature = 0.0f, .dry_multiplier = 0.001f, .dry_base = 1.2f}},
        {"dry_base_one", 4, 60, 1, {.seed = 127, .temperature = 0.0f, .dry_multiplier = 5.0f, .dry_base = 1.0f}},
        {"repeated_sampler", 2000, 60, 3, {.seed = 131, .samplers = "kkpt", .top_k = 20}},
        {"no_samplers", 100, 60, 3, {.seed = 137, .samplers = ""}},
        {"temperature_first", 2000, 60, 10, {.seed = 139, .samplers = "tmpk", .temperature = 1.8f}},
        {"everything", 60, 60, 8, {.seed = 149, .temperature = 1.1f, .dynatemp_range = 0.3f, .top_k = 12, .top_p = 0.98f, .min_p = 0.01f, .top_n_sigma = 3.0f, .typ_p = 0.97f, .xtc_probability = 0.3f, .repeat_last_n = 20, .repeat_penalty = 1.1f, .frequency_penalty = 0.05f, .presence_penalty = 0.1f, .dry_multiplier = 0.8f, .dry_allowed_length = 1, .dry_breakers = {{5}}, .logit_bias = {{8, 2.0f}}}},
    };
}

// For each text: number of sequences, sum of their first tokens, number of further tokens and their sum.
static int breakers(const char * path) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(path, params);
    if (!model) return 1;
    const llama_vocab & vocab = *llama_model_get_vocab(model);
    const std::pair<const char *, const char *> texts[] = {
        {"\\n", "\n"}, {":", ":"}, {"\\\"", "\""}, {"*", "*"}, {" the", " the"}, {"foo bar", "foo bar"}, {"\u65e5\u672c", "\xe6\x97\xa5\xe6\x9c\xac"},
        {"\\n\\n", "\n\n"}, {"<|im_end|>", "<|im_end|>"},
        {"a text of more than forty bytes, cut there", "a text of more than forty bytes, cut there"},
    };
    printf("[");
    bool first = true;
    for (const auto & [json, text] : texts) {
        std::unordered_multimap<llama_token, std::vector<llama_token>> all;
        std::string cut(text);
        if (cut.size() > 40) cut.resize(40);
        get_overlapping_token_sequences(vocab, cut, all, 20);
        long n_tail = 0, heads = 0, tails = 0;
        for (const auto & [head, tail] : all) {
            heads += head;
            n_tail += tail.size();
            for (llama_token t : tail) tails += t;
        }
        printf("%s\n  [\"%s\", %zu, %ld, %ld, %ld]", first ? "" : ",", json, all.size(), heads, n_tail, tails);
        first = false;
    }
    printf("\n]\n");
    return 0;
}

int main(int argc, char ** argv) {
    if (argc > 1) return breakers(argv[1]);
    printf("[\n");
    bool first = true;
    for (const auto & c : cases()) {
        const auto samplers = chain(c.p, c.n_vocab);
        state = c.p.seed;
        printf("%s  {\"name\": \"%s\", \"n_vocab\": %d, \"power\": %d, \"params\": ", first ? "" : ",\n", c.name, c.n_vocab, c.power);
        print_params(c.p);
        printf(",\n   \"tokens\": [");
        first = false;
        std::vector<llama_token_data> cur(c.n_vocab);
        for (int step = 0; step < c.n_steps; ++step) {
            for (int i = 0; i < c.n_vocab; ++i) cur[i] = { i, logit(c.power), 0.0f };
            llama_token_data_array arr = { cur.data(), cur.size(), -1, false };
            for (auto * s : samplers) llama_sampler_apply(s, &arr);
            const llama_token t = arr.data[arr.selected].id;
            for (auto * s : samplers) llama_sampler_accept(s, t);
            printf("%s%d", step ? ", " : "", t);
        }
        printf("]}");
    }
    printf("\n]\n");
}
