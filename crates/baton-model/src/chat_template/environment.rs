//! The Jinja environment of Hugging Face's `apply_chat_template`: its switches, functions and JSON filter.

use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use super::calendar;

/// Steps and 64-byte copies of one rendering. The longest real conversations take well under a tenth of it.
const FUEL: u64 = 10_000_000;
/// Nested macros and includes; real templates have two or three.
const MAX_RECURSION: usize = 64;
/// The hidden variable that `strftime_now` reads: Jinja names begin otherwise.
pub(super) const NOW: &str = "__now_unix_s";

pub(super) fn hugging_face() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the default ones"));
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    environment
}

/// The template's own refusal, kept apart from errors in the template.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

/// The message of `raise_exception`, if that is what ended the rendering.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = next {
        if let Some(Refusal(message)) = one.downcast_ref() {
            return Some(message.clone());
        }
        next = one.source();
    }
    None
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let now = state.lookup(NOW).and_then(|now| u64::try_from(now).ok()).unwrap_or(0);
    Ok(calendar::strftime(now, format))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`, which is what Hugging Face puts in the place of Jinja's
/// own filter: no HTML escapes, a space behind colons and commas, members in the order they have.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates pass them with the values that they have here anyway.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        None => write_json(&mut out, value, PythonFormatter),
        Some(width) => {
            write_json(&mut out, value, PrettyFormatter::with_indent(" ".repeat(width.min(16)).as_bytes()))
        }
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let text = String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

fn write_json<F: Formatter>(out: &mut Vec<u8>, value: &Value, formatter: F) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, formatter))
}

/// One line, with Python's spaces.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        CompactFormatter.begin_object_value(writer)?;
        writer.write_all(b" ")
    }
}

/// `{% generation %}` marks what the assistant said, for training. Here it is a block that is always taken.
pub(super) fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{%") {
        let Some((tag, behind)) = after.split_once("%}") else { break };
        out.push_str(before);
        let name = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replaced = match name {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        out.extend(["{%", &replaced, "%}"]);
        rest = behind;
    }
    out.push_str(rest);
    out
}
