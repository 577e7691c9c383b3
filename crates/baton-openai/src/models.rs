//! `/v1/models`, with the two members that vLLM adds.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    pub object: String,
    pub data: Vec<ModelCard>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    pub id: String,
    pub object: String,
    /// Unix seconds.
    #[serde(default)]
    pub created: u64,
    pub owned_by: String,
    /// What the model was loaded from, as the operator named it; never a path of the machine.
    #[serde(default)]
    pub root: Option<String>,
    /// Tokens of prompt and answer together.
    #[serde(default)]
    pub max_model_len: Option<u32>,
}

impl ModelList {
    pub fn new(data: Vec<ModelCard>) -> Self {
        Self { object: "list".to_owned(), data }
    }
}

impl ModelCard {
    pub fn new(id: &str, created: u64, max_model_len: u32) -> Self {
        Self {
            id: id.to_owned(),
            object: "model".to_owned(),
            created,
            owned_by: "baton".to_owned(),
            root: Some(id.to_owned()),
            max_model_len: Some(max_model_len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_vllms() {
        let json = serde_json::to_string(&ModelList::new(vec![ModelCard::new("m", 7, 2048)])).unwrap();
        assert_eq!(
            json,
            r#"{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"baton","root":"m","max_model_len":2048}]}"#
        );
    }
}
