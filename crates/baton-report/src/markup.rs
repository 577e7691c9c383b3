//! HTML text: everything that a result says goes through here.

use std::fmt::{self, Display};

/// A text as HTML shows it, in elements and in double-quoted attributes.
#[derive(Debug)]
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Marks that turn the text around could make a row say what it does not.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_str("\u{fffd}")?,
                c if c.is_control() && c != '\n' && c != '\t' => f.write_str("\u{fffd}")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// JSON that may stand in a script element: `<` would let a text end the element, or begin a comment in it.
pub fn json_in_script(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(value)?
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</script><img src=x onerror=\"alert('1')\"> & <!-- \u{202e}\u{0}";

    #[test]
    fn no_text_is_markup() {
        let escaped = Escaped(HOSTILE).to_string();
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}']), "{escaped}");
    }

    #[test]
    fn no_text_ends_a_script() -> Result<(), serde_json::Error> {
        let json = json_in_script(&HOSTILE)?;
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json)?, HOSTILE);
        Ok(())
    }
}
