//! Which tokens begin a text and end an answer.

use std::path::Path;

use baton_types::TokenId;
use serde_json::Value;

use super::TokenizerError;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<TokenId>,
    /// In ascending order, each once.
    pub eos: Vec<TokenId>,
}

impl SpecialTokens {
    pub fn new(bos: Option<TokenId>, eos: impl IntoIterator<Item = TokenId>) -> Self {
        let mut eos: Vec<TokenId> = eos.into_iter().collect();
        eos.sort_unstable();
        eos.dedup();
        Self { bos, eos }
    }

    /// `tokenizer_config.json` names tokens, `generation_config.json` and `config.json` give ids, `eos_token_id` one or a
    /// list. All that is said is taken: a chat's end-of-turn is often in only one of them.
    ///
    /// # Errors
    /// If one of the files is there and is not JSON.
    pub fn from_directory(
        directory: &Path,
        id_of: impl Fn(&str) -> Option<TokenId>,
    ) -> Result<Self, TokenizerError> {
        let names = read_json(&directory.join("tokenizer_config.json"))?;
        let mut bos = token_name(&names["bos_token"]).and_then(&id_of);
        let mut eos: Vec<TokenId> = token_name(&names["eos_token"]).and_then(&id_of).into_iter().collect();
        for file in ["generation_config.json", "config.json"] {
            let ids = read_json(&directory.join(file))?;
            eos.extend(token_ids(&ids["eos_token_id"]));
            bos = bos.or_else(|| token_ids(&ids["bos_token_id"]).first().copied());
        }
        Ok(Self::new(bos, eos))
    }
}

/// A token in `tokenizer_config.json`: its text, or an object with its text as `content`.
pub(crate) fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn token_ids(value: &Value) -> Vec<TokenId> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
    match value {
        Value::Array(items) => items.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// Null if the file is absent.
pub(crate) fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    let wrong = |reason: String| TokenizerError::File { path: path.display().to_string(), reason };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(wrong(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_heard() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("tokenizer_config.json", r#"{"bos_token":null,"eos_token":{"content":"<e>","lstrip":false}}"#);
        write("generation_config.json", r#"{"eos_token_id":[9,5],"bos_token_id":1}"#);
        write("config.json", r#"{"eos_token_id":5,"bos_token_id":2}"#);
        let id_of = |text: &str| (text == "<e>").then_some(TokenId(7));
        let special = SpecialTokens::from_directory(dir.path(), id_of).unwrap();
        assert_eq!(special, SpecialTokens::new(Some(TokenId(1)), [5, 7, 9].map(TokenId)));
        write("config.json", "{");
        assert!(SpecialTokens::from_directory(dir.path(), id_of).is_err());
    }

    #[test]
    fn absent_files_are_no_tokens() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(SpecialTokens::from_directory(dir.path(), |_| None), Ok(SpecialTokens::default()));
    }
}
