// What llama.cpp says about texts under grammars and JSON schemas: reads the cases of tests/golden/grammar/verdicts.json from
// standard input and writes them again with its verdicts: yes (the text matches), part (it can become a match), no, or
// error for a grammar that is refused. tests/golden/README.md has the command.
#include "json-schema-to-grammar.h"
#include "llama-grammar.h"
#include "unicode.h"

#include <nlohmann/json.hpp>

#include <iostream>

using json = nlohmann::ordered_json;

static std::string verdict(const std::string & grammar, const std::string & text) {
    llama_grammar * g = llama_grammar_init_impl(nullptr, grammar.c_str(), "root", false, nullptr, 0, nullptr, 0);
    if (!g) return "error";
    const auto & stacks = llama_grammar_get_stacks(g);
    for (uint32_t c : unicode_cpts_from_utf8(text)) {
        llama_grammar_accept(g, c);
        if (stacks.empty()) return "no";
    }
    for (const auto & stack : stacks) {
        if (stack.empty()) return "yes";
    }
    return "part";
}

int main() {
    json cases = json::parse(std::cin);
    std::cout << "[\n";
    for (size_t i = 0; i < cases.size(); ++i) {
        json & c = cases[i];
        std::string grammar = c.value("grammar", "");
        if (c.contains("schema")) grammar = json_schema_to_grammar(common_json::parse(c["schema"].dump()), true);
        for (auto & text : c["texts"]) text = json::array({ text.is_array() ? text[0] : text, verdict(grammar, text.is_array() ? text[0] : text) });
        std::cout << "  " << c.dump() << (i + 1 < cases.size() ? ",\n" : "\n");
    }
    std::cout << "]\n";
}
