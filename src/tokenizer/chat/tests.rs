use super::*;

fn special() -> SpecialTokens {
    SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false }
}

fn user(text: &str) -> Message {
    Message::new("user", text)
}

/// Renders `source` for one turn of the user.
fn rendered(source: &str) -> Result<String> {
    ChatTemplate::new(source, special())?.render(&[user("hi")], true)
}

#[test]
fn a_hostile_template_ends_with_an_error() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'x' * 9000000000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'etc' %}",
        "{% import 'etc' as x %}",
        "{{ strftime_now('%Q %!') }}",
        "{{ nothing() }}",
        "{{ 1",
        "{% unknown_tag %}",
        "{% set ns = namespace(x='xy') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% for i in range(99999999) %}{{ messages }}{% endfor %}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{{ 'x' | indent(4000000000) }}",
        "{{ '%999999999999d' | format(1) }}",
        "{{ '{:>999999999999}'.format(1) }}",
    ] {
        assert!(rendered(source).is_err(), "{source}");
    }
    let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(rendered(&format!("{{{{ {deep} }}}}")).is_err());
}

/// What fuel does not count: lists that share their parts have a text that doubles at every step.
#[test]
fn a_template_without_end_meets_the_deadline() {
    let double = |n: usize| {
        format!("{{% set ns = namespace(x=[1]) %}}{{% for i in range({n}) %}}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}{{{{ ns.x ~ '' }}}}")
    };
    let mut template = ChatTemplate::compile(&double(22), special(), Map::new()).unwrap();
    template.deadline = Duration::from_millis(50);
    assert!(is_too_slow(&template.render(&[user("hi")], true).unwrap_err()));
    let template = ChatTemplate::compile(&double(4), special(), Map::new()).unwrap();
    assert!(template.render(&[user("hi")], true).unwrap().starts_with("[[[[[1], [1]]"));
}

/// Every way to nest, as deep as a tag or a template may be and deeper: compiled, rendered or refused, never a crash.
#[test]
fn nesting_of_every_kind_fits_the_stack() {
    let forms: [(&str, &str, &str, &str); 16] = [
        ("{{ ", "not ", "1", " }}"),
        ("{{ ", "-", "1", " }}"),
        ("{{ ", "1 if 1 else ", "1", " }}"),
        ("{{ 1", "+1", "", " }}"),
        ("{{ 1", "~1", "", " }}"),
        ("{{ 1", " and 1", "", " }}"),
        ("{{ 1", "|string", "", " }}"),
        ("{{ 1", " is string", "", " }}"),
        ("{{ a", ".b", "", " }}"),
        ("{{ a", "[0]", "", " }}"),
        ("{{ a", "()", "", " }}"),
        ("{{ ", "[", "1", " }}"),
        ("{% set ", "(", "a", " = 1 %}"),
        ("", "{% if 1 %}", "1", ""),
        ("{% if 0 %}", "{% elif 1 %}", "1", "{% endif %}"),
        ("", "{% set x = [x] %}", "{{ x }}{{ x|tojson }}{{ x == [1] }}", ""),
    ];
    for (begin, again, middle, end) in forms {
        let open = matches!(again, "[" | "(" | "{% if 1 %}");
        for n in [100, 1_000, 4_990, 6_000, 100_000] {
            let mut source = format!("{begin}{}{middle}", again.repeat(n));
            if open {
                source += &match again {
                    "[" => "]",
                    "(" => ")",
                    _ => "{% endif %}",
                }
                .repeat(n);
            }
            let done = rendered(&(source + end));
            assert!(done.is_err() || n < 100_000, "{n} times {again}");
        }
    }
    assert_eq!(rendered(&format!("{{{{ 0{} }}}}", "+1".repeat(1_000))).unwrap(), "1000");
}

/// What is in a namespace is finite, as deep as it was when it came there, and otherwise the same.
#[test]
fn a_namespace_holds_plain_values() {
    let set = |x: &str, then: &str| rendered(&format!("{{% set ns = namespace(a=[]) %}}{{% set ns.a = {x} %}}{then}"));
    for (x, text) in [
        ("[1, 'x'] + [2]", "[1, 'x', 2]"),
        ("{'k': [true, none]}", "{'k': [True, None]}"),
        ("1, 2", "(1, 2)"),
        ("[1, 2, 3][1:]", "[2, 3]"),
        ("{'k': [1, 2]}.items()", "[('k', [1, 2])]"),
        ("5 if false else '%}'", "%}"),
        ("1 -", ""),
    ] {
        let done = set(x, "{{ ns.a }}");
        assert!(done.as_ref().map_or(x == "1 -", |done| done == text), "{x}: {done:?}");
    }
    assert_eq!(rendered("{% set ns = namespace() %}{% set ns.a, b = [1, 2] -%} {{ ns.a + b }}").unwrap(), "3");
    assert_eq!(rendered("{% set ns = namespace() %}{% set ns.a | upper -%} x {% endset %}{{ ns.a }}").unwrap(), "X ");
    assert_eq!(
        rendered("{% macro m() %}M{% endmacro %}{% set ns = namespace() %}{% set ns.a = m %}{{ ns.a() }}").unwrap(),
        "M"
    );
    for x in ["ns", "[ns]", "{'k': ns}", "{ns: 1}", "[[1, ns]][0:]", "(1, ns)", "namespace()", "[1]|zip([ns])"] {
        for then in ["", "{{ ns }}", "{{ ns|tojson }}", "{{ ns == 1 }}", "{{ ns ~ '' }}"] {
            assert!(set(x, then).unwrap_err().to_string().contains("a namespace cannot"), "{x}");
        }
    }
    let looped = "{% set ns = namespace() %}{% for a in [[ns], 1] %}{% set ns.a = loop %}{% endfor %}{{ ns|tojson }}";
    assert!(rendered(looped).is_err());
    let block = "{% set ns = namespace() %}{% set ns.a | default([ns], true) %}{% endset %}{{ ns|tojson }}";
    assert!(rendered(block).is_err());
    let grown = |n: usize, x: &str| {
        rendered(&format!("{{% set ns = namespace(a=[]) %}}{{% for i in range({n}) %}}{{% set ns.a = {x} %}}{{% endfor %}}{{{{ ns.a ~ (ns.a|tojson) ~ (ns.a == [1]) }}}}"))
    };
    assert!(grown(900, "[ns.a]").is_ok() && grown(1_100, "[ns.a]").unwrap_err().to_string().contains("1000 times"));
    assert!(grown(10_000, "ns.a[0:]").is_ok() && grown(300, "ns.a + [i]").is_ok());
    assert!(grown(60, "{'a': ns.a, 'b': ns.a}").is_err() && grown(60, "[ns.a[0:], ns.a[0:]]").is_err());
}

#[test]
fn an_engine_that_panics_is_an_error() {
    assert!(rendered("{% for i in [1] %}{{ loop.cycle() }}{% endfor %}").unwrap_err().to_string().contains("failed"));
}

#[test]
fn errors_name_the_line_and_the_reason() {
    let text = |source| rendered(source).unwrap_err().to_string();
    assert_eq!(
        text("\n{{ raise_exception('roles must alternate') }}"),
        "unsupported chat template: 'line 2: invalid operation: roles must alternate'"
    );
    assert!(text("a\nb\n{% breakfast %}").contains("line 3"));
}

#[test]
fn python_habits_work() {
    assert_eq!(rendered("{{ ' a '.strip() + 'x'.upper() }}").unwrap(), "aX");
    assert_eq!(
        rendered("{{ {'b': [1, true, none], 'a': '<é>'} | tojson }}").unwrap(),
        r#"{"b": [1, true, null], "a": "<é>"}"#
    );
    assert_eq!(rendered("{{ {'a': [1]} | tojson(indent=2) }}").unwrap(), "{\n  \"a\": [\n    1\n  ]\n}");
    assert_eq!(
        rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").unwrap(),
        "01"
    );
    assert_eq!(rendered("a  {%- generation -%}  b  {%- endgeneration %} c").unwrap(), "ab c");
    let year = rendered("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.len() == 4 && year.parse::<u32>().unwrap() > 2023);
}

#[test]
fn the_fallback_is_announced_and_a_wrong_choice_refused() {
    let open = |given, own| ChatTemplate::open(Choice { given, own, jinja: true }, special(), Map::new());
    let chatml = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    for (model, notice) in [(None, "has no chat template"), (Some("{% oops %}"), "cannot be used")] {
        let (template, said) = open(None, model).unwrap();
        assert!(said.unwrap().contains(notice));
        assert_eq!(template.render(&[user("hi")], true).unwrap(), chatml);
    }
    let (template, said) = open(Some("chatml"), Some("{% oops %}")).unwrap();
    assert!(said.is_none() && template.render(&[user("hi")], true).unwrap() == chatml);
    assert!(open(Some("{% oops %}"), None).is_err());
    let e = open(Some("llama9"), None).err().unwrap().to_string();
    assert!(e.contains("'llama9'") && e.contains("llama3, ") && e.lines().count() == 1, "{e}");
}

#[test]
fn without_jinja_the_built_in_template_of_the_format_is_used() {
    let open = |given, own| ChatTemplate::open(Choice { given, own, jinja: false }, special(), Map::new());
    let source = "{{ 'my own <|im_start|>' }}{{ nothing() }}";
    let text = |(template, said): (ChatTemplate, Option<String>)| {
        assert!(said.is_none());
        template.render(&[user("hi")], false).unwrap()
    };
    assert_eq!(text(open(None, Some(source)).unwrap()), "<|im_start|>user\nhi<|im_end|>\n");
    assert_eq!(text(open(Some(source), Some("[INST]")).unwrap()), "<|im_start|>user\nhi<|im_end|>\n");
    assert_eq!(text(open(Some("llama2"), Some(source)).unwrap()), "[INST] hi [/INST]");
    assert!(open(Some("{{ unheard of }}"), None).err().unwrap().to_string().contains("try using --jinja"));
    assert!(open(None, Some("{{ unheard of }}")).unwrap().1.unwrap().contains("try using --jinja"));
}

#[test]
fn variables_of_the_user_come_before_those_of_the_program() {
    let variables = serde_json::json!({"enable_thinking": false, "x": {"y": [1, "z"]}});
    let Json::Object(variables) = variables else { panic!() };
    let source = "{{ messages[0].content ~ enable_thinking ~ x.y[1] ~ bos_token }}";
    let template = ChatTemplate::with_variables(source, special(), variables).unwrap();
    assert_eq!(template.render(&[user("hi")], true).unwrap(), "hiFalsez<s>");
}

/// A template that refuses or ignores the system message gets it in front of the next turn, as in llama.cpp.
#[test]
fn a_system_message_is_never_lost() {
    let talk = [Message::new("system", "S"), user("U"), Message::new("assistant", "A")];
    for source in [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.content }}]{% endfor %}",
        "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}",
    ] {
        let template = ChatTemplate::new(source, special()).unwrap();
        assert_eq!(template.render(&talk, true).unwrap(), "[S\nU][A]");
        assert_eq!(template.render(&talk[1..], true).unwrap(), "[U][A]");
    }
    let heard = ChatTemplate::new("{% for m in messages %}[{{ m.content }}]{% endfor %}", special()).unwrap();
    assert_eq!(heard.render(&talk, true).unwrap(), "[S][U][A]");
}

#[test]
fn templates_of_parts_get_parts() {
    let source = "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, special()).unwrap();
    assert_eq!(template.render(&[Message::new("system", "S"), user("U")], true).unwrap(), "S;U;");
}

#[test]
fn bos_is_left_to_a_tokenizer_that_adds_it() {
    let with = SpecialTokens { add_bos: true, ..special() };
    let template = ChatTemplate::new("{{ bos_token }}x", with).unwrap();
    assert_eq!(template.render(&[user("hi")], true).unwrap(), "x");
    assert_eq!(rendered("{{ bos_token }}x").unwrap(), "<s>x");
}
