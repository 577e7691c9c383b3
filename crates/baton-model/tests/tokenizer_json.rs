//! Checkpoints that come with a `tokenizer.json`: our decoding, which is by bytes, against that of the tokenizers library.

use std::sync::Arc;

use baton_model::detokenizer::Detokenizer;
use baton_model::tokenizer::{SpecialTokens, Tokenizer};
use baton_types::TokenId;
use proptest::prelude::*;
use serde_json::{Value, json};

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false})
}

fn file(vocabulary: &[&str], extra: Value) -> Vec<u8> {
    let vocab: serde_json::Map<String, Value> =
        vocabulary.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let mut file = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<s>"},
        "added_tokens": [added(0, "<s>", true), added(1, "<tool>", false)],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": false},
    });
    for (name, value) in extra.as_object().unwrap() {
        match value {
            Value::Object(members) if name == "model" => {
                file[name].as_object_mut().unwrap().extend(members.clone());
            }
            other => file[name] = other.clone(),
        }
    }
    serde_json::to_vec(&file).unwrap()
}

/// As Llama 2's: `▁` for spaces, one of which is put first, and bytes for what is not in the vocabulary.
fn sentence_piece() -> Vec<u8> {
    file(
        &["<s>", "<tool>", "▁", "a", "b", "é", "▁a", "<0xE6>", "<0x97>", "<0xA5>", "<0x0A>"],
        json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"byte_fallback": true, "merges": [["▁", "a"]]},
        }),
    )
}

/// As GPT-2's, with the bytes of "日" as tokens.
fn byte_level() -> Vec<u8> {
    file(
        &["<s>", "<tool>", "Ġ", "a", "b", "Ġa", "æ", "Ĺ", "¥", "Ċ"],
        json!({
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"merges": [["Ġ", "a"]]},
        }),
    )
}

fn ours(json: &[u8]) -> Tokenizer {
    Tokenizer::from_json(json, SpecialTokens::default()).unwrap()
}

#[test]
fn texts_survive_and_nothing_is_cut_or_padded() {
    for json in [sentence_piece(), byte_level()] {
        let tokenizer = ours(&json);
        for text in ["a", "ab ba", "a\n日a", "  a", "aaaaaaaaaaaa", "a<tool>"] {
            let tokens = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&tokens, false), text, "{tokens:?}");
            assert_ne!(tokens.last(), Some(&TokenId(0)), "padded");
        }
    }
}

#[test]
fn an_answer_keeps_its_first_space() {
    let tokenizer = Arc::new(ours(&sentence_piece()));
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
    let pieces: Vec<String> = [6, 7, 8, 9, 0, 4].map(|id| detokenizer.push(TokenId(id))).to_vec();
    assert_eq!(pieces, [" a", "", "", "日", "", "b"]);
    assert_eq!(tokenizer.decode(&[6, 4].map(TokenId), true), "ab");
}

#[test]
fn a_directory_is_read_with_its_special_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_directory(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    std::fs::write(dir.path().join("tokenizer.json"), byte_level()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"eos_token":"<s>"}"#).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id":[9]}"#).unwrap();
    let tokenizer = Tokenizer::from_directory(dir.path()).unwrap();
    assert_eq!(tokenizer.eos(), [0, 9].map(TokenId));
    assert_eq!((tokenizer.bos(), tokenizer.vocab_size()), (None, 10));
}

#[test]
fn a_broken_file_is_an_error() {
    let special = SpecialTokens::default();
    assert!(Tokenizer::from_json(b"{", special.clone()).is_err());
    let no_decoder = file(&["<s>", "<tool>"], json!({}));
    assert!(Tokenizer::from_json(&no_decoder, special).unwrap_err().to_string().contains("decoder"));
}

proptest! {
    #[test]
    fn decoding_is_the_librarys(tokens in prop::collection::vec(0u32..10, 0..12), skip in any::<bool>()) {
        let json = byte_level();
        let library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let expected = library.decode(&tokens, skip).unwrap();
        let ids: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
        prop_assert_eq!(ours(&json).decode(&ids, skip), expected);
    }

    /// Without stray bytes: for those the library writes one U+FFFD a byte, and we one a broken character.
    #[test]
    fn decoding_of_sentence_pieces_is_the_librarys(
        words in prop::collection::vec(prop_oneof![
            (0u32..7).prop_map(|id| vec![id]), Just(vec![7, 8, 9]), Just(vec![10])
        ], 0..10),
        skip in any::<bool>(),
    ) {
        let tokens = words.concat();
        let json = sentence_piece();
        let library = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let expected = library.decode(&tokens, skip).unwrap();
        let ids: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
        prop_assert_eq!(ours(&json).decode(&ids, skip), expected);
    }
}
