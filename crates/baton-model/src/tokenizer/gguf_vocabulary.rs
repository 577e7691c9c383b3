//! The vocabulary inside a GGUF file, made into a `tokenizer.json`. GGUF names the way a text is cut before BPE and does
//! not write it down; the patterns here are those of the models' own tokenizers.

use baton_types::TokenId;
use serde_json::{Map, Value, json};

use super::{SpecialTokens, TokenizerError};
use crate::weights::gguf::{Gguf, GgufError, Value as GgufValue};

/// What a GGUF file says about its tokenizer, under `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `model`.
    pub kind: String,
    /// `pre`; absent in old files.
    pub pre: Option<String>,
    /// `tokens`: their index is their id.
    pub tokens: Vec<String>,
    /// `token_type`, one a token; see [`CONTROL`] and [`USER_DEFINED`].
    pub token_types: Vec<u64>,
    /// `merges`: two tokens with a space between them, the most important pair first.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    /// `eos_token_id`, `eot_token_id`, `eom_token_id`: whichever are there.
    pub eos: Vec<u32>,
    /// Absent means what the model's own tokenizer does.
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
}

/// `token_type` of tokens that steer the model.
const CONTROL: u64 = 3;
/// `token_type` of tokens that are text but never come out of merges.
const USER_DEFINED: u64 = 4;

/// How a text is cut into pieces before BPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    Gpt2,
    SmolLm,
    Llama3,
    Qwen2,
}

const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl PreTokenizer {
    pub const NAMES: &str = "gpt-2, gpt2, default, smollm, llama-bpe, llama3, qwen2";

    fn named(name: &str) -> Option<Self> {
        match name {
            "gpt-2" | "gpt2" | "default" => Some(Self::Gpt2),
            "smollm" => Some(Self::SmolLm),
            "llama-bpe" | "llama3" => Some(Self::Llama3),
            "qwen2" => Some(Self::Qwen2),
            _ => None,
        }
    }

    fn to_json(self) -> Value {
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let sequence = |steps: [Value; 2]| json!({"type": "Sequence", "pretokenizers": steps});
        match self {
            Self::Gpt2 => byte_level(true),
            Self::SmolLm => {
                sequence([json!({"type": "Digits", "individual_digits": true}), byte_level(true)])
            }
            Self::Llama3 => sequence([split(LLAMA3_PATTERN), byte_level(false)]),
            Self::Qwen2 => sequence([split(QWEN2_PATTERN), byte_level(false)]),
        }
    }
}

impl GgufVocabulary {
    /// # Errors
    /// If the file has no vocabulary, or a member of it is of another type than it should be.
    pub fn read(gguf: &Gguf) -> Result<Self, GgufError> {
        let strings = |key: &str| -> Result<Vec<String>, GgufError> {
            Ok(gguf.get_strings(key)?.into_iter().map(str::to_owned).collect())
        };
        let id = |name: &str| {
            let value = gguf.metadata(&format!("tokenizer.ggml.{name}")).and_then(GgufValue::as_u64);
            value.and_then(|id| u32::try_from(id).ok())
        };
        let flag = |name: &str| gguf.metadata(&format!("tokenizer.ggml.{name}")).and_then(GgufValue::as_bool);
        let pre = gguf.metadata("tokenizer.ggml.pre").and_then(GgufValue::as_str);
        let token_types = match gguf.metadata("tokenizer.ggml.token_type") {
            Some(_) => gguf.get_u64s("tokenizer.ggml.token_type")?,
            None => Vec::new(),
        };
        Ok(Self {
            kind: gguf.get_str("tokenizer.ggml.model")?.to_owned(),
            pre: pre.map(str::to_owned),
            tokens: strings("tokenizer.ggml.tokens")?,
            token_types,
            merges: strings("tokenizer.ggml.merges")?,
            bos: id("bos_token_id"),
            eos: ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().filter_map(id).collect(),
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
        })
    }

    pub fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens::new(self.bos.map(TokenId), self.eos.iter().copied().map(TokenId))
    }

    /// # Errors
    /// If the vocabulary is of a kind or cut in a way that is not supported, or its parts do not fit together.
    pub fn to_tokenizer_json(&self) -> Result<Vec<u8>, TokenizerError> {
        if self.kind != "gpt2" {
            return Err(TokenizerError::VocabularyKind(self.kind.clone()));
        }
        let name = self.pre.as_deref().unwrap_or("default");
        let pre = PreTokenizer::named(name).ok_or_else(|| TokenizerError::PreTokenizer(name.to_owned()))?;
        let file = json!({
            "version": "1.0",
            "added_tokens": self.added_tokens()?,
            "normalizer": (pre == PreTokenizer::Qwen2).then(|| json!({"type": "NFC"})),
            "pre_tokenizer": pre.to_json(),
            "post_processor": self.post_processor(pre)?,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE",
                "fuse_unk": false,
                "byte_fallback": false,
                // Llama 3 takes a whole piece that is a token as it is, whatever the merges would make of it.
                "ignore_merges": pre == PreTokenizer::Llama3,
                "vocab": self.vocabulary(),
                "merges": self.merges()?,
            },
        });
        serde_json::to_vec(&file).map_err(|e| TokenizerError::Build(e.to_string()))
    }

    fn vocabulary(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), Value::from(id))).collect()
    }

    fn merges(&self) -> Result<Vec<[&str; 2]>, TokenizerError> {
        let wrong = |merge: &str| TokenizerError::Build(format!("{merge:?} is no merge"));
        let pairs = self.merges.iter().map(|merge| {
            merge.split_once(' ').map(|(left, right)| [left, right]).ok_or_else(|| wrong(merge))
        });
        pairs.collect()
    }

    fn added_tokens(&self) -> Result<Vec<Value>, TokenizerError> {
        if !self.token_types.is_empty() && self.token_types.len() != self.tokens.len() {
            let (types, tokens) = (self.token_types.len(), self.tokens.len());
            return Err(TokenizerError::Build(format!("{types} token types for {tokens} tokens")));
        }
        let added = self.token_types.iter().zip(&self.tokens).enumerate();
        Ok(added
            .filter(|(_, (kind, _))| matches!(**kind, CONTROL | USER_DEFINED))
            .map(|(id, (kind, token))| {
                json!({"id": id, "content": token, "special": *kind == CONTROL, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false})
            })
            .collect())
    }

    /// BOS before and EOS behind a text, where the model wants them; Llama 3 wants BOS unless the file says otherwise.
    fn post_processor(&self, pre: PreTokenizer) -> Result<Value, TokenizerError> {
        let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
        let mut special = Map::new();
        let mut add = |id: Option<u32>, at_end: bool| -> Result<(), TokenizerError> {
            let Some(id) = id else { return Ok(()) };
            let token = self.tokens.get(id as usize);
            let token =
                token.ok_or_else(|| TokenizerError::Build(format!("special token {id} is no token")))?;
            let at = if at_end { single.len() } else { 0 };
            single.insert(at, json!({"SpecialToken": {"id": token, "type_id": 0}}));
            special.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
            Ok(())
        };
        if self.add_bos.unwrap_or(pre == PreTokenizer::Llama3) {
            add(self.bos, false)?;
        }
        if self.add_eos.unwrap_or(false) {
            add(self.eos.first().copied(), true)?;
        }
        if special.is_empty() {
            return Ok(Value::Null);
        }
        let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]);
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    /// The 256 bytes, a few merges, and two added tokens at the end.
    fn vocabulary(pre: &str) -> GgufVocabulary {
        let mut printable: Vec<char> = (0u32..256)
            .filter(|b| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF))
            .filter_map(char::from_u32)
            .collect();
        let rest = 256 - printable.len() as u32;
        printable.extend((256..256 + rest).filter_map(char::from_u32));
        let mut tokens: Vec<String> = printable.into_iter().map(String::from).collect();
        tokens.extend(["12", "123", "Ġa", "<s>", "<user>"].map(String::from));
        let mut token_types = vec![1; tokens.len()];
        token_types[259] = CONTROL;
        token_types[260] = USER_DEFINED;
        GgufVocabulary {
            kind: "gpt2".into(),
            pre: Some(pre.into()),
            tokens,
            token_types,
            merges: ["1 2", "12 3", "Ġ a"].map(String::from).to_vec(),
            bos: Some(259),
            eos: vec![259],
            ..GgufVocabulary::default()
        }
    }

    fn pieces(pre: &str, text: &str) -> Vec<String> {
        let tokenizer = Tokenizer::from_gguf(&vocabulary(pre)).unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text, "{pre}");
        ids.into_iter().map(|id| tokenizer.token_text(id).unwrap()).collect()
    }

    #[test]
    fn digits_are_cut_as_each_model_cuts_them() {
        assert_eq!(pieces("gpt-2", "1234"), ["123", "4"]);
        assert_eq!(pieces("smollm", "1234"), ["1", "2", "3", "4"]);
        assert_eq!(pieces("llama-bpe", "12312"), ["123", "12"]);
        assert_eq!(pieces("qwen2", "12"), ["1", "2"]);
        for pre in ["default", "smollm", "llama3", "qwen2"] {
            assert_eq!(pieces(pre, " a<user>é"), ["Ġa", "<user>", "Ã", "©"], "{pre}");
        }
    }

    #[test]
    fn bos_is_added_where_the_model_or_the_file_wants_it() {
        let encode =
            |v: &GgufVocabulary, special| Tokenizer::from_gguf(v).unwrap().encode("1", special).unwrap();
        let one = TokenId(16);
        assert_eq!(encode(&vocabulary("gpt-2"), true), [one]);
        assert_eq!(encode(&vocabulary("llama-bpe"), true), [TokenId(259), one]);
        assert_eq!(encode(&vocabulary("llama-bpe"), false), [one]);
        let file = GgufVocabulary { add_bos: Some(false), add_eos: Some(true), ..vocabulary("llama-bpe") };
        assert_eq!(encode(&file, true), [one, TokenId(259)]);
    }

    #[test]
    fn control_tokens_are_special_and_user_tokens_are_text() {
        let tokenizer = Tokenizer::from_gguf(&vocabulary("gpt-2")).unwrap();
        let ids = tokenizer.encode("<s><user>1", false).unwrap();
        assert_eq!(ids, [259, 260, 16].map(TokenId));
        assert_eq!(tokenizer.decode(&ids, true), "<user>1");
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(259)), &[TokenId(259)][..]));
        assert_eq!(tokenizer.vocab_size(), 261);
    }

    #[test]
    fn what_is_not_supported_says_so() {
        let kind = GgufVocabulary { kind: "llama".into(), ..vocabulary("default") };
        assert!(Tokenizer::from_gguf(&kind).unwrap_err().to_string().contains("\"llama\""));
        let error = Tokenizer::from_gguf(&vocabulary("tekken")).unwrap_err().to_string();
        assert!(error.contains("tekken") && error.contains("smollm"), "{error}");
    }

    #[test]
    fn parts_that_do_not_fit_are_errors() {
        let good = vocabulary("gpt-2");
        for bad in [
            GgufVocabulary { token_types: vec![1], ..good.clone() },
            GgufVocabulary { merges: vec!["12".into()], ..good.clone() },
            GgufVocabulary { merges: vec!["x yz".into()], ..good.clone() },
            GgufVocabulary { add_bos: Some(true), bos: Some(9999), ..good.clone() },
        ] {
            assert!(matches!(Tokenizer::from_gguf(&bad), Err(TokenizerError::Build(_))));
        }
    }
}
