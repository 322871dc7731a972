//! The chat templates that llama.cpp knows by name, as Jinja texts of our own, and how it recognises them in a model's template.
//!
//! Source: the formats as `src/llama-chat.cpp` of llama.cpp b11434 renders them; tests compare each with its renderings.
//! Deviations: gemma and orion put a system message only in front of a turn of the user that follows it; a BOS token that a
//! format writes itself is left to a tokenizer that adds one.

/// Every turn alike, then the beginning of the answer.
macro_rules! each {
    ($turn:literal, $answer:literal) => {
        concat!("{% for m in messages %}", $turn, "{% endfor %}{% if add_generation_prompt %}", $answer, "{% endif %}")
    };
}

/// A system message, a turn of the user, an answer; then the beginning of the next answer.
macro_rules! roles {
    ($system:literal, $user:literal, $assistant:literal, $answer:literal) => {
        concat!(
            "{% for m in messages %}{% if m.role == 'system' %}",
            $system,
            "{% elif m.role == 'user' %}",
            $user,
            "{% else %}",
            $assistant,
            "{% endif %}{% endfor %}{% if add_generation_prompt %}",
            $answer,
            "{% endif %}"
        )
    };
}

/// The text of a built-in template.
pub(super) fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// The names of all built-in templates.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// The name of the built-in template that llama.cpp uses for a model's template when it does not read it as Jinja.
pub fn recognise(source: &str) -> Option<&'static str> {
    let has_all = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
    MARKS.iter().find(|(_, marks)| has_all(marks)).map(|(name, _)| *name)
}

/// Name and text of every built-in template.
#[rustfmt::skip]
const BUILTIN: &[(&str, &str)] = &[
    ("chatml", each!("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n", "<|im_start|>assistant\n")),
    ("llama2", "[INST] {% for m in messages %}{% if not loop.first and loop.previtem.role == 'assistant' %}[INST] {% endif %}{% if m.role == 'system' %}{{ m.content }}\n{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"),
    ("llama2-sys", "[INST] {% for m in messages %}{% if not loop.first and loop.previtem.role == 'assistant' %}[INST] {% endif %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content }}\n<</SYS>>\n\n{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"),
    ("llama2-sys-bos", "[INST] {% for m in messages %}{% if not loop.first and loop.previtem.role == 'assistant' %}<s>[INST] {% endif %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content }}\n<</SYS>>\n\n{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"),
    ("llama2-sys-strip", "[INST] {% for m in messages %}{% if not loop.first and loop.previtem.role == 'assistant' %}[INST] {% endif %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content | trim }}\n<</SYS>>\n\n{% elif m.role == 'user' %}{{ m.content | trim }} [/INST]{% else %}{{ m.content | trim }}</s>{% endif %}{% endfor %}"),
    ("mistral-v1", "{% for m in messages %}{% if loop.first or loop.previtem.role == 'assistant' %} [INST] {% endif %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"),
    ("mistral-v3", "{% for m in messages %}{% if loop.first or loop.previtem.role == 'assistant' %}[INST] {% endif %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}{{ m.content }}[/INST]{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"),
    ("mistral-v3-tekken", "{% for m in messages %}{% if loop.first or loop.previtem.role == 'assistant' %}[INST]{% endif %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"),
    ("mistral-v7", roles!("[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]", "[INST] {{ m.content }}[/INST]", " {{ m.content }}</s>", "")),
    ("mistral-v7-tekken", roles!("[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]", "[INST]{{ m.content }}[/INST]", "{{ m.content }}</s>", "")),
    ("phi3", each!("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n", "<|assistant|>\n")),
    ("phi4", each!("<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>", "<|im_start|>assistant<|im_sep|>")),
    ("falcon3", each!("<|{{ m.role }}|>\n{{ m.content }}\n", "<|assistant|>\n")),
    ("zephyr", each!("<|{{ m.role }}|>\n{{ m.content }}<|endoftext|>\n", "<|assistant|>\n")),
    ("monarch", each!("{% if not loop.first %}<s>{% endif %}{{ m.role }}\n{{ m.content }}</s>\n", "<s>assistant\n")),
    ("gemma", roles!("", "<start_of_turn>user\n{% if m.role == 'user' and loop.previtem is defined and loop.previtem.role == 'system' %}{{ loop.previtem.content | trim }}\n\n{% endif %}{{ m.content | trim }}<end_of_turn>\n", "<start_of_turn>model\n{{ m.content | trim }}<end_of_turn>\n", "<start_of_turn>model\n")),
    ("orion", roles!("", "Human: {% if m.role == 'user' and loop.previtem is defined and loop.previtem.role == 'system' %}{{ loop.previtem.content }}\n\n{% endif %}{{ m.content }}\n\nAssistant: </s>", "{{ m.content }}</s>", "")),
    ("openchat", roles!("{{ m.content }}<|end_of_turn|>", "GPT4 Correct User: {{ m.content }}<|end_of_turn|>", "GPT4 Correct Assistant: {{ m.content }}<|end_of_turn|>", "GPT4 Correct Assistant:")),
    ("vicuna", roles!("{{ m.content }}\n\n", "USER: {{ m.content }}\n", "ASSISTANT: {{ m.content }}</s>\n", "ASSISTANT:")),
    ("vicuna-orca", roles!("SYSTEM: {{ m.content }}\n", "USER: {{ m.content }}\n", "ASSISTANT: {{ m.content }}</s>\n", "ASSISTANT:")),
    ("deepseek", roles!("{{ m.content }}", "### Instruction:\n{{ m.content }}\n", "### Response:\n{{ m.content }}\n<|EOT|>\n", "### Response:\n")),
    ("deepseek2", roles!("{{ m.content }}\n\n", "User: {{ m.content }}\n\n", "Assistant: {{ m.content }}<｜end▁of▁sentence｜>", "Assistant:")),
    ("deepseek3", roles!("{{ m.content }}\n\n", "<｜User｜>{{ m.content }}", "<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>", "<｜Assistant｜>")),
    ("deepseek-ocr", each!("{{ m.content }}", "")),
    ("command-r", roles!("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")),
    ("llama3", each!("<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n")),
    ("chatglm3", each!("{% if loop.first %}[gMASK]sop{% endif %}<|{{ m.role }}|>\n {{ m.content }}", "<|assistant|>")),
    ("chatglm4", each!("{% if loop.first %}[gMASK]<sop>{% endif %}<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>\n")),
    ("glmedge", each!("<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>")),
    ("minicpm", roles!("{{ m.content | trim }}", "<用户>{{ m.content | trim }}<AI>", "{{ m.content | trim }}", "")),
    ("exaone3", roles!("[|system|]{{ m.content | trim }}[|endofturn|]\n", "[|user|]{{ m.content | trim }}\n", "[|assistant|]{{ m.content | trim }}[|endofturn|]\n", "[|assistant|]")),
    ("exaone4", roles!("[|system|]{{ m.content | trim }}[|endofturn|]\n", "[|user|]{{ m.content | trim }}\n", "[|assistant|]{{ m.content | trim }}[|endofturn|]\n", "[|assistant|]")),
    ("exaone-moe", each!("<|{{ m.role }}|>\n{{ m.content | trim }}<|endofturn|>\n", "<|assistant|>\n")),
    ("rwkv-world", roles!("System: {{ m.content | trim }}\n\n", "User: {{ m.content | trim }}\n\n{% if loop.last %}Assistant:{% endif %}", "Assistant: {{ m.content | trim }}\n\n", "")),
    ("granite", each!("<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>")),
    ("granite-4.0", each!("<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>")),
    ("granite-4.1", each!("<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>")),
    ("gigachat", "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}<|message_sep|>{% elif m.role == 'user' %}user<|role_sep|>{{ m.content }}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>{% else %}assistant<|role_sep|>{{ m.content }}<|message_sep|>{% endif %}{% endfor %}{% if add_generation_prompt %}assistant<|role_sep|>{% endif %}"),
    ("megrez", each!("<|role_start|>{{ m.role }}<|role_end|>{{ m.content }}<|turn_end|>", "<|role_start|>assistant<|role_end|>")),
    ("yandex", roles!("", " Пользователь: {{ m.content }}\n\n", " Ассистент: {{ m.content }}\n\n", " Ассистент:[SEP]")),
    ("bailing", roles!("<role>SYSTEM</role>{{ m.content }}", "<role>HUMAN</role>{{ m.content }}", "<role>ASSISTANT</role>{{ m.content }}", "<role>ASSISTANT</role>")),
    ("bailing-think", roles!("<role>SYSTEM</role>{{ m.content }}", "<role>HUMAN</role>{{ m.content }}", "<role>ASSISTANT</role>{{ m.content }}", "<role>ASSISTANT</role><think>")),
    ("bailing2", roles!("<role>SYSTEM</role>{{ m.content }}<|role_end|>", "{% if loop.first %}<role>SYSTEM</role>detailed thinking off<|role_end|>{% endif %}<role>HUMAN</role>{{ m.content }}<|role_end|>", "<role>ASSISTANT</role>{{ m.content }}<|role_end|>", "<role>ASSISTANT</role>")),
    ("llama4", each!("<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content | trim }}<|eot|>", "<|header_start|>assistant<|header_end|>\n\n")),
    ("smolvlm", "<|im_start|>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}User: {{ m.content }}<end_of_utterance>\n{% else %}Assistant: {{ m.content }}<end_of_utterance>\n{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"),
    ("dots1", roles!("<|system|>{{ m.content }}<|endofsystem|>", "<|userprompt|>{{ m.content }}<|endofuserprompt|>", "<|response|>{{ m.content }}<|endofresponse|>", "<|response|>")),
    ("hunyuan-moe", roles!("<|startoftext|>{{ m.content }}<|extra_4|>", "<|startoftext|>{{ m.content }}<|extra_0|>", "{{ m.content }}<|eos|>", "")),
    ("gpt-oss", roles!("<|start|>system<|message|>{{ m.content }}<|end|>", "<|start|>user<|message|>{{ m.content }}<|end|>", "<|start|>assistant<|message|>{{ m.content }}<|return|>", "<|start|>assistant")),
    ("hunyuan-dense", roles!("{{ m.content }}<｜hy_place▁holder▁no▁3｜>", "<｜hy_User｜>{{ m.content }}<｜hy_Assistant｜>", "<｜hy_Assistant｜>{{ m.content }}<｜hy_place▁holder▁no▁2｜>", "")),
    ("hunyuan-vl", "<｜hy_begin▁of▁sentence｜>{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}<｜hy_place▁holder▁no▁3｜>{% elif m.role == 'user' %}<｜hy_User｜>{% else %}<｜hy_Assistant｜>{% endif %}{% endfor %}"),
    ("kimi-k2", each!("<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>", "<|im_assistant|>assistant<|im_middle|>")),
    ("seed_oss", roles!("<seed:bos>system\n{{ m.content }}<seed:eos>", "<seed:bos>user\n{{ m.content }}<seed:eos>", "<seed:bos>assistant\n{{ m.content | trim }}<seed:eos>", "<seed:bos>assistant\n")),
    ("grok-2", roles!("System: {{ m.content | trim }}<|separator|>\n\n", "Human: {{ m.content | trim }}<|separator|>\n\n", "Assistant: {{ m.content }}<|separator|>\n\n", "Assistant:")),
    ("pangu-embedded", roles!("[unused9]系统：{{ m.content }}[unused10]", "{% if loop.first %}[unused9]系统：[unused10]{% endif %}[unused9]用户：{{ m.content }}[unused10]", "[unused9]助手：{{ m.content }}[unused10]", "[unused9]助手：")),
    ("solar-open", each!("<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>", "<|begin|>assistant")),
];

/// What the templates of a format contain; the first row that is met wins.
#[rustfmt::skip]
const MARKS: &[(&str, &[&str])] = &[
    ("phi4", &["<|im_start|>", "<|im_sep|>"]),
    ("smolvlm", &["<|im_start|>", "<end_of_utterance>"]),
    ("chatml", &["<|im_start|>"]),
    ("mistral-v7", &["[INST]", "[SYSTEM_PROMPT]"]),
    ("mistral-v1", &["' [INST] ' + system_message"]),
    ("mistral-v1", &[" [INST]", "[AVAILABLE_TOOLS]"]),
    ("mistral-v3-tekken", &["\"[INST]\"", "[AVAILABLE_TOOLS]"]),
    ("mistral-v3", &["[INST]", "[AVAILABLE_TOOLS]"]),
    ("llama2-sys-strip", &["[INST]", "content.strip()"]),
    ("llama2-sys-bos", &["bos_token + '[INST]"]),
    ("llama2-sys", &["[INST]", "<<SYS>>"]),
    ("llama2", &["[INST]"]),
    ("phi3", &["<|assistant|>", "<|end|>"]),
    ("chatglm4", &["[gMASK]<sop>"]),
    ("exaone-moe", &["<|assistant|>", "<|user|>", "<|tool_declare|>"]),
    ("falcon3", &["<|assistant|>", "<|user|>", "</s>"]),
    ("glmedge", &["<|assistant|>", "<|user|>"]),
    ("glmedge", &["<|{{ item['role'] }}|>", "<|begin_of_image|>"]),
    ("zephyr", &["<|user|>", "<|endoftext|>"]),
    ("monarch", &["bos_token + message['role']"]),
    ("gemma", &["<start_of_turn>"]),
    ("orion", &["'\\n\\nAssistant: ' + eos_token"]),
    ("openchat", &["GPT4 Correct "]),
    ("vicuna-orca", &["USER: ", "ASSISTANT: ", "SYSTEM: "]),
    ("vicuna", &["USER: ", "ASSISTANT: "]),
    ("deepseek", &["### Instruction:", "<|EOT|>"]),
    ("command-r", &["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"]),
    ("llama3", &["<|start_header_id|>", "<|end_header_id|>"]),
    ("chatglm3", &["[gMASK]sop"]),
    ("minicpm", &["<用户>"]),
    ("deepseek2", &["'Assistant: ' + message['content'] + eos_token"]),
    ("deepseek3", &["<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"]),
    ("exaone4", &["[|system|]", "[|assistant|]", "[|endofturn|]"]),
    ("rwkv-world", &["rwkv-world"]),
    ("rwkv-world", &["{{- 'User: ' + message['content']|trim + '\\n\\n' -}}"]),
    ("granite", &["<|start_of_role|>"]),
    ("gigachat", &["message['role'] + additional_special_tokens[0] + message['content'] + additional_special_tokens[1]"]),
    ("megrez", &["<|role_start|>"]),
    ("yandex", &[" Ассистент:"]),
    ("bailing", &["<role>ASSISTANT</role>", "'HUMAN'"]),
    ("bailing-think", &["<role>ASSISTANT</role>", "\"HUMAN\"", "<think>"]),
    ("bailing2", &["<role>ASSISTANT</role>", "<role>HUMAN</role>", "<|role_end|>"]),
    ("llama4", &["<|header_start|>", "<|header_end|>"]),
    ("dots1", &["<|endofuserprompt|>"]),
    ("hunyuan-moe", &["<|extra_0|>", "<|extra_4|>"]),
    ("gpt-oss", &["<|start|>", "<|channel|>"]),
    ("hunyuan-vl", &["<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>"]),
    ("hunyuan-dense", &["<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>"]),
    ("kimi-k2", &["<|im_assistant|>assistant<|im_middle|>"]),
    ("seed_oss", &["<seed:bos>"]),
    ("grok-2", &["'Assistant: '  + message['content'] + '<|separator|>"]),
    ("pangu-embedded", &["[unused9]系统：[unused10]"]),
    ("solar-open", &["<|begin|>", "<|end|>", "<|content|>"]),
];
