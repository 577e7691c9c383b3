//! Members that change the answer and that Baton does not implement: refused, because ignoring them would answer another
//! question than the one asked. Every other unknown member is ignored, as OpenAI's clients expect.

use serde_json::Value;

use crate::body::Body;
use crate::error::ApiError;

/// When a member asks for nothing, so that it may be there.
#[derive(Clone, Copy, Debug)]
enum Harmless {
    /// Null, `false`, an empty list, object or text.
    Empty,
    /// Empty, or this integer.
    Or(i64),
    /// Null or `true`: the default is on.
    OrTrue,
}

struct Refusal {
    name: &'static str,
    harmless: Harmless,
    why: &'static str,
}

const fn refuse(name: &'static str, harmless: Harmless, why: &'static str) -> Refusal {
    Refusal { name, harmless, why }
}

const NO_TOOLS: &str = "Tool calling is not supported.";
const NO_LOGPROBS: &str = "Log probabilities are not supported.";
const NO_GRAMMAR: &str = "Constrained output is not supported.";
const NO_PENALTY: &str = "Penalties are not supported.";

const REFUSALS: &[Refusal] = &[
    refuse("logprobs", Harmless::Empty, NO_LOGPROBS),
    refuse("top_logprobs", Harmless::Or(0), NO_LOGPROBS),
    refuse("prompt_logprobs", Harmless::Empty, NO_LOGPROBS),
    refuse("tools", Harmless::Empty, NO_TOOLS),
    refuse("functions", Harmless::Empty, NO_TOOLS),
    refuse("logit_bias", Harmless::Empty, "logit_bias is not supported."),
    refuse("echo", Harmless::Empty, "echo is not supported."),
    refuse("suffix", Harmless::Empty, "suffix is not supported."),
    refuse("best_of", Harmless::Or(1), "best_of must be 1: one choice is generated per request."),
    refuse("use_beam_search", Harmless::Empty, "Beam search is not supported."),
    refuse("presence_penalty", Harmless::Or(0), NO_PENALTY),
    refuse("frequency_penalty", Harmless::Or(0), NO_PENALTY),
    refuse("repetition_penalty", Harmless::Or(1), NO_PENALTY),
    refuse("min_p", Harmless::Or(0), "min_p is not supported."),
    refuse("stop_token_ids", Harmless::Empty, "stop_token_ids is not supported; use stop."),
    refuse("bad_words", Harmless::Empty, "bad_words is not supported."),
    refuse("allowed_token_ids", Harmless::Empty, "allowed_token_ids is not supported."),
    refuse("include_stop_str_in_output", Harmless::Empty, "include_stop_str_in_output is not supported."),
    refuse("skip_special_tokens", Harmless::OrTrue, "Special tokens are never part of the text."),
    refuse("truncate_prompt_tokens", Harmless::Empty, "Prompts are not truncated."),
    refuse("prompt_embeds", Harmless::Empty, "Prompt embeddings are not supported."),
    refuse("guided_json", Harmless::Empty, NO_GRAMMAR),
    refuse("guided_regex", Harmless::Empty, NO_GRAMMAR),
    refuse("guided_choice", Harmless::Empty, NO_GRAMMAR),
    refuse("guided_grammar", Harmless::Empty, NO_GRAMMAR),
    refuse("structured_outputs", Harmless::Empty, NO_GRAMMAR),
    refuse("audio", Harmless::Empty, "Audio is not supported."),
    refuse("continue_final_message", Harmless::Empty, "continue_final_message is not supported."),
    refuse("documents", Harmless::Empty, "documents is not supported."),
    // A template is a program: it comes from the operator, not from a client.
    refuse("chat_template", Harmless::Empty, "A request cannot bring its own chat template."),
];

/// # Errors
/// A 400 for the first member, in the table's order, that asks for something.
pub(crate) fn check(body: &Body) -> Result<(), ApiError> {
    for refusal in REFUSALS {
        if let Some(value) = body.read(refusal.name)?
            && !asks_for_nothing(&value, refusal.harmless)
        {
            return Err(ApiError::unsupported(refusal.name, refusal.why));
        }
    }
    tool_choice(body)?;
    modalities(body)?;
    response_format(body)
}

fn asks_for_nothing(value: &Value, harmless: Harmless) -> bool {
    let empty = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    match harmless {
        Harmless::Empty => empty,
        Harmless::Or(number) => empty || value.as_f64() == Some(number as f64),
        Harmless::OrTrue => matches!(value, Value::Null | Value::Bool(true)),
    }
}

/// Without tools, "none" and "auto" change nothing; "required" or a named tool does.
fn tool_choice(body: &Body) -> Result<(), ApiError> {
    for name in ["tool_choice", "function_call"] {
        let value: Option<Value> = body.read(name)?;
        if value.is_some_and(|value| value != "none" && value != "auto") {
            return Err(ApiError::unsupported(name, NO_TOOLS));
        }
    }
    Ok(())
}

fn modalities(body: &Body) -> Result<(), ApiError> {
    let all: Vec<String> = body.read("modalities")?.unwrap_or_default();
    if all.iter().any(|one| one != "text") {
        return Err(ApiError::unsupported("modalities", "Only text is generated."));
    }
    Ok(())
}

fn response_format(body: &Body) -> Result<(), ApiError> {
    let format: Option<Value> = body.read("response_format")?;
    if format.is_some_and(|format| format.get("type").and_then(Value::as_str) != Some("text")) {
        let message = "Only the response_format {\"type\":\"text\"} is supported.";
        return Err(ApiError::unsupported("response_format", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(members: Value) -> Option<String> {
        let body = Body::parse(members.to_string().into(), 10_000).unwrap();
        check(&body).err().map(|error| {
            assert_eq!(error.status(), 400);
            error.param.expect("a refusal names its member")
        })
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        assert_eq!(
            outcome(json!({
                "logprobs": false, "top_logprobs": 0, "tools": [], "tool_choice": "none", "logit_bias": {},
                "echo": false, "suffix": null, "best_of": 1, "presence_penalty": 0.0, "frequency_penalty": 0,
                "repetition_penalty": 1.0, "response_format": {"type": "text"}, "modalities": ["text"],
                "skip_special_tokens": true, "user": "me", "metadata": {"a": 1}, "whatever": [1, 2, 3],
            })),
            None
        );
    }

    #[test]
    fn what_asks_for_something_is_refused_by_name() {
        for (name, value) in [
            ("logprobs", json!(true)),
            ("logprobs", json!(0)),
            ("top_logprobs", json!(3)),
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("required")),
            ("tool_choice", json!({"type": "function"})),
            ("function_call", json!({"name": "f"})),
            ("logit_bias", json!({"5": -100})),
            ("echo", json!(true)),
            ("suffix", json!("end")),
            ("best_of", json!(2)),
            ("presence_penalty", json!(0.5)),
            ("repetition_penalty", json!(1.1)),
            ("repetition_penalty", json!(0)),
            ("skip_special_tokens", json!(false)),
            ("response_format", json!({"type": "json_object"})),
            ("response_format", json!("text")),
            ("modalities", json!(["text", "audio"])),
            ("chat_template", json!("{{ 1 }}")),
            ("structured_outputs", json!({"regex": "a+"})),
        ] {
            assert_eq!(outcome(json!({name: value.clone()})).as_deref(), Some(name), "{name}: {value}");
        }
    }
}
