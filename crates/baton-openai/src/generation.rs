//! What both endpoints share: how to generate.

use baton_types::{KvTransferParams, SamplingParams};
use serde::Deserialize;

use crate::body::Body;
use crate::error::{ApiError, ErrorKind};

/// Most stop strings a request may have. OpenAI allows 4; agents send more.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string, in bytes: the detokeniser may hold that much text back.
pub const MAX_STOP_BYTES: usize = 1024;
/// Longest `cache_salt`, in bytes.
pub const MAX_CACHE_SALT_BYTES: usize = 1024;

/// A validated request for tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// `None`: up to the end of the context.
    pub max_tokens: Option<u32>,
    /// So many tokens come before EOS or a stop string may end the answer.
    pub min_tokens: u32,
    pub temperature: f32,
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// `None`: the server draws one.
    pub seed: Option<u64>,
    /// None of them is empty.
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub stream: bool,
    /// Send a last chunk with `usage` and no choices. Only when streaming.
    pub include_usage: bool,
    /// Return the ids of prompt and answer, as vLLM does.
    pub return_token_ids: bool,
    pub cache_salt: Option<String>,
    pub kv_transfer_params: Option<KvTransferParams>,
}

impl Generation {
    /// `drawn_seed` is used when the client gave none.
    pub fn sampling(&self, drawn_seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed.unwrap_or(drawn_seed),
        }
    }

    /// How many tokens may be generated after a prompt of `prompt_tokens`, when `max_model_len` tokens fit in all.
    ///
    /// # Errors
    /// A 400 that names the numbers, if the prompt leaves no room or the asked-for answer does not fit.
    pub fn answer_limit(&self, prompt_tokens: usize, max_model_len: usize) -> Result<u32, ApiError> {
        let room = max_model_len.saturating_sub(prompt_tokens);
        let asked = self.max_tokens.map(|n| n as usize);
        if room == 0 || asked.is_some_and(|n| n > room) {
            let answer = asked.unwrap_or(1);
            let message = format!(
                "This model's maximum context length is {max_model_len} tokens. However, you requested {} tokens \
                 ({prompt_tokens} in the prompt, {answer} in the completion). Please reduce the length of the prompt \
                 or of the completion.",
                prompt_tokens.saturating_add(answer)
            );
            let param = if room == 0 { "prompt" } else { "max_tokens" };
            return Err(ApiError { kind: ErrorKind::ContextLength, message, param: Some(param.to_owned()) });
        }
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        if self.min_tokens > room {
            let message = format!(
                "min_tokens is {}, but after a prompt of {prompt_tokens} tokens only {room} more fit.",
                self.min_tokens
            );
            return Err(ApiError::bad_param("min_tokens", message));
        }
        Ok(self.max_tokens.unwrap_or(room))
    }
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "stop must be a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Generation {
    /// Reads the members that both endpoints share. Numbers are read wide, so that a wrong one gets our message.
    ///
    /// # Errors
    /// A 400 that names the first member of a wrong type or out of range.
    pub(crate) fn read(body: &Body, default_max_tokens: Option<u32>) -> Result<Self, ApiError> {
        if body.read::<i64>("n")?.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported("n", "n must be 1: one choice is generated per request."));
        }
        let (max_tokens, min_tokens) = read_lengths(body, default_max_tokens)?;
        let stream = body.stream()?;
        let stream_options: Option<StreamOptions> = body.read("stream_options")?;
        if stream_options.is_some() && !stream {
            return Err(ApiError::bad_param(
                "stream_options",
                "stream_options is only allowed when stream is true.",
            ));
        }
        Ok(Self {
            max_tokens,
            min_tokens,
            temperature: temperature(body.read("temperature")?)?,
            top_p: top_p(body.read("top_p")?)?,
            top_k: top_k(body.read("top_k")?)?,
            seed: body.read("seed")?.map(i64::cast_unsigned),
            stop: stop_strings(body.read("stop")?)?,
            ignore_eos: body.read("ignore_eos")?.unwrap_or(false),
            stream,
            include_usage: stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            return_token_ids: body.read("return_token_ids")?.unwrap_or(false),
            cache_salt: cache_salt(body.cache_salt()?)?,
            kv_transfer_params: body.read("kv_transfer_params")?,
        })
    }
}

/// `max_tokens`, by its newer name if both are there, and `min_tokens`.
fn read_lengths(body: &Body, default_max_tokens: Option<u32>) -> Result<(Option<u32>, u32), ApiError> {
    let mut max_tokens = default_max_tokens;
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(n) = body.read(name)? {
            max_tokens = Some(count_in(name, n, 1)?);
        }
    }
    let min_tokens = body.read("min_tokens")?.map_or(Ok(0), |n| count_in("min_tokens", n, 0))?;
    match max_tokens {
        Some(max) if min_tokens > max => {
            let message = format!("min_tokens ({min_tokens}) must not be above max_tokens ({max}).");
            Err(ApiError::bad_param("min_tokens", message))
        }
        _ => Ok((max_tokens, min_tokens)),
    }
}

fn count_in(param: &str, value: i64, least: u32) -> Result<u32, ApiError> {
    u32::try_from(value)
        .ok()
        .filter(|n| *n >= least)
        .ok_or_else(|| ApiError::bad_param(param, format!("{param} must be at least {least}, got {value}.")))
}

fn temperature(value: Option<f64>) -> Result<f32, ApiError> {
    let value = value.unwrap_or(1.0);
    if !(0.0..=2.0).contains(&value) {
        return Err(ApiError::bad_param(
            "temperature",
            format!("temperature must be between 0 and 2, got {value}."),
        ));
    }
    Ok(value as f32)
}

fn top_p(value: Option<f64>) -> Result<f32, ApiError> {
    let value = value.unwrap_or(1.0);
    if !(value > 0.0 && value <= 1.0) {
        return Err(ApiError::bad_param(
            "top_p",
            format!("top_p must be above 0 and at most 1, got {value}."),
        ));
    }
    // A tiny f64 must not become the f32 zero, which is out of range.
    Ok((value as f32).max(f32::MIN_POSITIVE))
}

fn top_k(value: Option<i64>) -> Result<u32, ApiError> {
    match value {
        None | Some(-1 | 0) => Ok(0),
        Some(k) => u32::try_from(k).map_err(|_| {
            ApiError::bad_param("top_k", format!("top_k must be -1, 0 (all) or positive, got {k}."))
        }),
    }
}

fn stop_strings(stop: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let strings = match stop {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Many(texts)) => texts,
    };
    if strings.len() > MAX_STOP_STRINGS {
        let message = format!("stop may have at most {MAX_STOP_STRINGS} strings, got {}.", strings.len());
        return Err(ApiError::bad_param("stop", message));
    }
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::bad_param("stop", "A stop string must not be empty."));
    }
    if strings.iter().any(|text| text.len() > MAX_STOP_BYTES) {
        let message = format!("A stop string may have at most {MAX_STOP_BYTES} bytes.");
        return Err(ApiError::bad_param("stop", message));
    }
    Ok(strings)
}

fn cache_salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    match &salt {
        Some(text) if text.is_empty() || text.len() > MAX_CACHE_SALT_BYTES => {
            let message = format!("cache_salt must have 1 to {MAX_CACHE_SALT_BYTES} bytes.");
            Err(ApiError::bad_param("cache_salt", message))
        }
        _ => Ok(salt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Generation, ApiError> {
        Generation::read(&Body::parse(json.to_owned().into(), 10_000)?, None)
    }

    #[test]
    fn defaults_are_openais() {
        let g = parse("{}").unwrap();
        assert_eq!((g.max_tokens, g.min_tokens, g.temperature, g.top_p, g.top_k), (None, 0, 1.0, 1.0, 0));
        assert!(!g.stream && !g.include_usage && !g.ignore_eos && g.stop.is_empty());
        assert_eq!(g.sampling(9).seed, 9);
    }

    #[test]
    fn nulls_are_absent() {
        let json = r#"{"max_tokens":null,"temperature":null,"stop":null,"n":null,"stream":null,
            "stream_options":null,"seed":null,"kv_transfer_params":null,"cache_salt":null,"top_k":null}"#;
        assert_eq!(parse(json).unwrap(), parse("{}").unwrap());
    }

    #[test]
    fn max_completion_tokens_wins() {
        assert_eq!(parse(r#"{"max_tokens":5,"max_completion_tokens":7}"#).unwrap().max_tokens, Some(7));
    }

    #[test]
    fn a_negative_seed_is_a_seed() {
        assert_eq!(parse(r#"{"seed":-1}"#).unwrap().sampling(3).seed, u64::MAX);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (json, param) in [
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"max_completion_tokens":-1}"#, "max_completion_tokens"),
            (r#"{"max_tokens":5000000000}"#, "max_tokens"),
            (r#"{"min_tokens":-1}"#, "min_tokens"),
            (r#"{"min_tokens":3,"max_tokens":2}"#, "min_tokens"),
            (r#"{"temperature":2.1}"#, "temperature"),
            (r#"{"temperature":-0.1}"#, "temperature"),
            (r#"{"top_p":0}"#, "top_p"),
            (r#"{"top_p":1.01}"#, "top_p"),
            (r#"{"top_k":-2}"#, "top_k"),
            (r#"{"n":2}"#, "n"),
            (r#"{"n":0}"#, "n"),
            (r#"{"stop":""}"#, "stop"),
            (r#"{"stop":["a",""]}"#, "stop"),
            (
                r#"{"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}"#,
                "stop",
            ),
            (r#"{"stream_options":{"include_usage":true}}"#, "stream_options"),
            (r#"{"cache_salt":""}"#, "cache_salt"),
        ] {
            let error = parse(json).unwrap_err();
            assert_eq!((error.status(), error.param.as_deref()), (400, Some(param)), "{json}");
        }
    }

    #[test]
    fn a_wrong_type_is_a_400_that_names_the_member() {
        let error = parse(r#"{"temperature":"hot"}"#).unwrap_err();
        assert_eq!((error.status(), error.param.as_deref()), (400, Some("temperature")));
        assert!(error.message.contains("\"hot\""), "{}", error.message);
        let error = parse(r#"{"stop":3}"#).unwrap_err();
        assert!(error.message.contains("stop must be a string or a list of strings"), "{}", error.message);
        let error = parse(r#"{"kv_transfer_params":{"transfer_id":"x"}}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("kv_transfer_params"));
    }

    #[test]
    fn a_tiny_top_p_stays_positive() {
        assert!(parse(r#"{"top_p":1e-300}"#).unwrap().top_p > 0.0);
    }

    #[test]
    fn the_answer_fits_the_context() {
        let g = parse(r#"{"max_tokens":10}"#).unwrap();
        assert_eq!(g.answer_limit(90, 100), Ok(10));
        let error = g.answer_limit(91, 100).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ContextLength);
        for number in ["100 tokens", "101 tokens", "91 in the prompt", "10 in the completion"] {
            assert!(error.message.contains(number), "{}", error.message);
        }
        let open = parse("{}").unwrap();
        assert_eq!(open.answer_limit(90, 100), Ok(10));
        assert_eq!(open.answer_limit(100, 100).unwrap_err().param.as_deref(), Some("prompt"));
        assert!(open.answer_limit(usize::MAX, 100).is_err());
        let greedy = parse(r#"{"min_tokens":11}"#).unwrap();
        assert_eq!(greedy.answer_limit(90, 100).unwrap_err().param.as_deref(), Some("min_tokens"));
    }
}
