use super::*;
use serde_json::json;

fn compile(template: &str) -> ChatTemplate {
    let source = TemplateSource {
        template: template.to_owned(),
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
    };
    ChatTemplate::compile(source).unwrap()
}

fn render_with(template: &str, messages: &Json, kwargs: &Json) -> Result<String, ChatTemplateError> {
    compile(template).render(Conversation {
        messages: messages.as_array().unwrap(),
        add_generation_prompt: true,
        kwargs: kwargs.as_object().unwrap(),
        now_unix_s: 951_782_400,
    })
}

fn render(template: &str) -> Result<String, ChatTemplateError> {
    let messages = json!([{"role": "user", "content": " hi <b>"}, {"role": "assistant", "content": "yo"}]);
    render_with(template, &messages, &json!({}))
}

fn text(template: &str) -> String {
    render(template).unwrap()
}

#[test]
fn variables_and_switches_are_hugging_faces() {
    assert_eq!(text("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}"), "<s></s>True");
    // trim_blocks and lstrip_blocks: a block's own line leaves nothing.
    assert_eq!(
        text(
            "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m['content'] }}\n  {% endif %}\n{% endfor %}\n"
        ),
        " hi <b>\n"
    );
    assert_eq!(text("{{ messages[0].content }}"), " hi <b>");
    assert_eq!(
        text("{{ messages[-1]['content'] }}{{ messages[1:]|length }}{{ messages[::-1][0].role }}"),
        "yo1assistant"
    );
    assert_eq!(
        text("{% if tools %}t{% endif %}{% if tools is not none %}n{% endif %}{{ undefined_thing }}."),
        "."
    );
    assert_eq!(
        text(
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ),
        "02"
    );
}

#[test]
fn python_methods_work() {
    assert_eq!(text("{{ messages[0].content.strip().upper() }}"), "HI <B>");
    assert_eq!(text("{{ 'a</think>b'.split('</think>')[-1].lstrip('b') }}."), ".");
    assert_eq!(
        text("{{ messages[0].get('name', 'x') }}{% for k, v in messages[1].items() %}{{ k }}{% endfor %}"),
        "xrolecontent"
    );
    assert_eq!(
        text("{{ 'abc'.startswith('ab') }}{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"),
        "True2"
    );
}

#[test]
fn json_is_pythons() {
    let messages = json!([{"role": "user", "content": "", "tool_calls": [
        {"z": 1, "a": [1.5, null, true], "text": "<é'\"\n🙂>"}, {}, []
    ]}]);
    let dumped = render_with("{{ messages[0].tool_calls | tojson }}", &messages, &json!({})).unwrap();
    assert_eq!(dumped, r#"[{"z": 1, "a": [1.5, null, true], "text": "<é'\"\n🙂>"}, {}, []]"#);
    let dumped =
        render_with("{{ messages[0].tool_calls[0].a | tojson(indent=4) }}", &messages, &json!({})).unwrap();
    assert_eq!(dumped, "[\n    1.5,\n    null,\n    true\n]");
    assert_eq!(text("{{ {'a': 1}|tojson(ensure_ascii=False) }}"), r#"{"a": 1}"#);
}

#[test]
fn a_refusal_is_told_and_an_error_is_an_error() {
    let refused = render("{{ raise_exception('Roles must alternate') }}");
    assert_eq!(refused, Err(ChatTemplateError::Refused("Roles must alternate".into())));
    let in_macro = render("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}");
    assert_eq!(in_macro, Err(ChatTemplateError::Refused("no".into())));
    assert!(matches!(render("{{ messages.nothing.more }}"), Err(ChatTemplateError::Render(_))));
    let bad = TemplateSource { template: "{% if %}".into(), ..TemplateSource::default() };
    assert!(matches!(ChatTemplate::compile(bad), Err(ChatTemplateError::Compile(_))));
}

#[test]
fn dates_are_the_conversations() {
    assert_eq!(text("{{ strftime_now('%d %b %Y') }}"), "29 Feb 2000");
    assert_eq!(text("{% macro m() %}{{ strftime_now('%Y') }}{% endmacro %}{{ m() }}"), "2000");
}

#[test]
fn kwargs_are_variables_but_not_the_request() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let template = "{{ messages|length }}{{ enable_thinking }}";
    assert_eq!(render_with(template, &messages, &json!({"enable_thinking": false})).unwrap(), "1False");
    let reserved = render_with(template, &messages, &json!({"messages": []}));
    assert_eq!(reserved, Err(ChatTemplateError::Reserved("messages".into())));
}

#[test]
fn generation_tags_are_blocks() {
    assert_eq!(text("a {%- generation -%} b {%- endgeneration %} c"), "ab c");
    assert_eq!(text("{% set generation = 'x' %}{{ generation }}{{ '{%' }}"), "x{%");
}

#[test]
fn a_rendering_is_bounded() {
    for endless in [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(t='x') %}{% for a in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
        "{{ 'x' * 100000000000 }}",
    ] {
        let error = render(endless).unwrap_err();
        assert!(matches!(error, ChatTemplateError::TooMuch | ChatTemplateError::Render(_)), "{error:?}");
    }
    let recursive = render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    assert!(recursive.is_err());
    let long = TemplateSource { template: "x".repeat(MAX_TEMPLATE_BYTES + 1), ..TemplateSource::default() };
    assert!(ChatTemplate::compile(long).is_err());
    let messages = json!([{"role": "user", "content": "x".repeat(40 << 20)}]);
    let doubled = render_with("{{ messages[0].content }}{{ messages[0].content }}", &messages, &json!({}));
    assert_eq!(doubled, Err(ChatTemplateError::TooMuch));
}

#[test]
fn a_directory_has_its_template_in_one_of_three_places() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let read = || TemplateSource::from_directory(dir.path());
    assert_eq!(read(), Err(ChatTemplateError::Absent));
    write(
        "tokenizer_config.json",
        r#"{"bos_token":{"content":"<b>"},"eos_token":"<e>","chat_template":"one"}"#,
    );
    let source = read().unwrap();
    assert_eq!((source.template.as_str(), source.bos_token.as_deref()), ("one", Some("<b>")));
    let list = r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#;
    write("tokenizer_config.json", list);
    assert_eq!(read().unwrap().template, "d");
    write("chat_template.jinja", "file");
    assert_eq!(read().unwrap().template, "file");
}
