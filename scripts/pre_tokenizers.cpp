// Prints the ids that llama.cpp gives for the text on standard input with each vocabulary: one line of ids per file, and the name in
// front. Part of tests/golden/tokenizer/pre.json (tests/golden/README.md has the commands).
#include "llama.h"
#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) fputs(text, stderr);
    }, nullptr);
    std::string text;
    for (int c; (c = getchar()) != EOF;) text += (char) c;
    for (int i = 1; i < argc; ++i) {
        llama_model_params mp = llama_model_default_params();
        mp.vocab_only = true;
        llama_model * model = llama_model_load_from_file(argv[i], mp);
        if (!model) return 1;
        std::vector<llama_token> ids(text.size() + 8);
        const int n = llama_tokenize(llama_model_get_vocab(model), text.data(), text.size(), ids.data(), ids.size(), false, false);
        if (n < 0) return 1;
        printf("%s", argv[i]);
        for (int k = 0; k < n; ++k) printf(" %d", ids[k]);
        printf("\n");
        llama_model_free(model);
    }
    return 0;
}
