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

/// Deep values are made, written and given back by recursion.
#[test]
fn a_deep_value_fits_the_stack() {
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(30000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for end in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == [1] }}"] {
        let _ = rendered(&format!("{deep}{end}"));
    }
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
