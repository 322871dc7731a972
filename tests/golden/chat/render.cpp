// Renders conversations by llama.cpp's own code, for tests/golden/chat. The head of README.md there has the commands.
//
//     render                     every built-in template, by llama_chat_apply_template
//     render FILE...             Jinja templates, by common_chat_templates_apply
//     render --no-jinja FILE...  the longest conversation by llama_chat_apply_template, which recognises formats
//
// Today's date, where a template asks for it, becomes {today:FORMAT}. Prints a JSON object: name -> texts of the conversations below, in their order; null where llama.cpp refuses.
#include "chat.h"
#include "llama.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

using json = nlohmann::ordered_json;
using talk = std::vector<std::pair<std::string, std::string>>;

static const talk SYSTEM = { { "system", "Be brief. " } };
static const talk FIRST  = { { "user", " What is 1 + 1?\n" } };
static const talk REST   = { { "assistant", " Two. " }, { "user", "And \"2\" + <é>?" } };

static talk join(std::initializer_list<talk> parts) {
    talk all;
    for (const auto & part : parts) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

// The conversations, and whether the answer is to be prepared.
static const std::vector<std::pair<talk, bool>> TALKS = {
    { FIRST, true },
    { join({ FIRST, REST }), true },
    { join({ SYSTEM, FIRST, REST }), true },
    { join({ SYSTEM, FIRST, REST }), false },
};

static json by_format(const std::string & name, const talk & messages, bool add_assistant) {
    std::vector<llama_chat_message> chat;
    for (const auto & m : messages) {
        chat.push_back({ m.first.c_str(), m.second.c_str() });
    }
    std::vector<char> text(1 << 16);
    const int n = llama_chat_apply_template(name.c_str(), chat.data(), chat.size(), add_assistant, text.data(), text.size());
    return n < 0 ? json() : json(std::string(text.data(), n));
}

static std::string without_date(std::string text, const std::string & source) {
    static const std::regex call("strftime_now\\(['\"]([^'\"]+)['\"]\\)");
    for (std::sregex_iterator it(source.begin(), source.end(), call), end; it != end; ++it) {
        const std::string format = (*it)[1];
        char today[100];
        const time_t now = time(nullptr);
        const std::string date(today, strftime(today, sizeof(today), format.c_str(), localtime(&now)));
        for (size_t at; (at = text.find(date)) != std::string::npos;) {
            text.replace(at, date.size(), "{today:" + format + "}");
        }
    }
    return text;
}

static json by_jinja(const std::string & source, const talk & messages, bool add_assistant) {
    try {
        auto templates = common_chat_templates_init(nullptr, source, "<s>", "</s>");
        common_chat_templates_inputs inputs;
        for (const auto & m : messages) {
            common_chat_msg message;
            message.role = m.first;
            message.content = m.second;
            inputs.messages.push_back(message);
        }
        inputs.add_generation_prompt = add_assistant;
        inputs.use_jinja = true;
        inputs.chat_template_kwargs["date_string"] = "\"26 Jul 2024\"";
        return without_date(common_chat_templates_apply(templates.get(), inputs).prompt, source);
    } catch (const std::exception & e) {
        std::cerr << e.what() << "\n";
        return nullptr;
    }
}

int main(int argc, char ** argv) {
    json all = json::object();
    const auto add = [&](const std::string & name, const auto & render, const std::string & source) {
        for (const auto & t : TALKS) {
            all[name].push_back(render(source, t.first, t.second));
        }
    };
    if (argc == 1) {
        std::vector<const char *> names(256);
        names.resize(llama_chat_builtin_templates(names.data(), names.size()));
        for (const std::string name : names) {
            add(name, by_format, name);
        }
        add("dots1", by_format, "<|endofuserprompt|>"); // known, but not by name
    }
    const bool no_jinja = argc > 1 && std::string(argv[1]) == "--no-jinja";
    for (int i = no_jinja ? 2 : 1; i < argc; i++) {
        std::ifstream file(argv[i]);
        std::stringstream source;
        source << file.rdbuf();
        const std::string path = argv[i];
        const std::string name = path.substr(path.rfind('/') + 1);
        if (no_jinja) {
            all[name] = by_format(source.str(), TALKS[2].first, TALKS[2].second);
        } else {
            add(name, by_jinja, source.str());
        }
    }
    std::cout << all.dump(1) << "\n";
}
