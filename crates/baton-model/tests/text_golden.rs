//! Tokenizer, chat template and detokeniser of the default model against what Python's transformers makes of them.
//!
//! The model is taken from `BATON_SMOLLM2_GGUF`, or fetched as `baton up` would fetch it.

mod support;

use std::sync::{Arc, LazyLock};

use baton_model::chat_template::{ChatTemplate, Conversation, TemplateSource};
use baton_model::detokenizer::Detokenizer;
use baton_model::tokenizer::{GgufVocabulary, Tokenizer};
use baton_model::weights::gguf::Gguf;
use baton_types::TokenId;
use proptest::prelude::*;
use serde_json::{Map, Value};
use support::smollm2_path;

const GOLDEN: &str = include_str!("golden/smollm2_text.json");

static MODEL: LazyLock<Gguf> = LazyLock::new(|| {
    let path = smollm2_path();
    Gguf::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
});
static TOKENIZER: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(Tokenizer::from_gguf(&GgufVocabulary::read(&MODEL).unwrap()).unwrap()));

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn pieces(tokens: &[TokenId]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(&TOKENIZER));
    let mut pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn tricky_texts_have_the_reference_ids() {
    let golden = golden();
    let texts = golden["tokenizer"].as_array().unwrap();
    assert_eq!(texts.len(), 12);
    for case in texts {
        let text = case["text"].as_str().unwrap();
        assert_eq!(TOKENIZER.encode(text, false).unwrap(), ids(&case["ids"]), "{text:?}");
        assert_eq!(
            TOKENIZER.encode(text, true).unwrap(),
            ids(&case["ids"]),
            "SmolLM2 adds nothing: {text:?}"
        );
        assert_eq!(TOKENIZER.decode(&ids(&case["ids"]), false), text);
    }
}

#[test]
fn chats_are_rendered_and_tokenised_as_the_reference_does() {
    let template = ChatTemplate::compile(TemplateSource::from_gguf(&MODEL).unwrap()).unwrap();
    let golden = golden();
    let chats = golden["chats"].as_array().unwrap();
    assert_eq!(chats.len(), 6);
    for chat in chats {
        let rendered = template.render(Conversation {
            messages: chat["messages"].as_array().unwrap(),
            add_generation_prompt: true,
            kwargs: &Map::new(),
            now_unix_s: 0,
        });
        assert_eq!(rendered.as_deref(), Ok(chat["prompt_text"].as_str().unwrap()));
        assert_eq!(TOKENIZER.encode(&rendered.unwrap(), false).unwrap(), ids(&chat["prompt_ids"]));
    }
}

#[test]
fn answers_are_decoded_whole_and_in_pieces() {
    for chat in golden()["chats"].as_array().unwrap() {
        let answer = ids(&chat["greedy_ids"]);
        let text = chat["greedy_text"].as_str().unwrap();
        assert_eq!(TOKENIZER.decode(&answer, false), text);
        assert_eq!(TOKENIZER.decode(&answer, true), text.replace("<|im_end|>", ""));
        assert_eq!(pieces(&answer).concat(), text.replace("<|im_end|>", ""));
    }
}

#[test]
fn special_tokens_are_the_models() {
    assert_eq!(TOKENIZER.vocab_size(), 49_152);
    assert_eq!((TOKENIZER.bos(), TOKENIZER.eos()), (Some(TokenId(1)), &[TokenId(2)][..]));
    assert!(TOKENIZER.is_special(TokenId(2)) && !TOKENIZER.is_special(TokenId(100)));
    assert_eq!(TOKENIZER.token_text(TokenId(905)).as_deref(), Some("Ġworld"));
}

#[test]
fn emoji_come_whole() {
    let tokens = TOKENIZER.encode("🙂🙃", false).unwrap();
    assert!(tokens.len() > 2, "an emoji of several tokens");
    let pieces = pieces(&tokens);
    assert!(pieces.iter().all(|piece| ["", "🙂", "🙃"].contains(&piece.as_str())), "{pieces:?}");
}

/// Texts made to be slow, as a client might send them.
#[test]
fn long_runs_are_tokenised_exactly_and_soon() {
    for unit in [" ", "a", "\n", "1", "!", "é", "日", " \n"] {
        let text = unit.repeat(200_000 / unit.len());
        let start = std::time::Instant::now();
        let tokens = TOKENIZER.encode(&text, false).unwrap();
        assert_eq!(TOKENIZER.decode(&tokens, false), text);
        assert!(start.elapsed().as_secs() < 20, "{unit:?} took {:?}", start.elapsed());
    }
}

proptest! {
    #[test]
    fn any_text_survives(text in "[a-zé日🙂\u{200b}ẞ 0-9\n\t<|>]{0,40}") {
        let tokens = TOKENIZER.encode(&text, false).unwrap();
        prop_assert_eq!(TOKENIZER.decode(&tokens, false), text);
    }

    #[test]
    fn any_tokens_in_pieces_are_the_whole(
        // Any token, and often those that are parts of characters.
        tokens in prop::collection::vec(prop_oneof![0u32..49_200, prop::sample::select(character_parts())], 0..40)
    ) {
        let tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
        prop_assert_eq!(pieces(&tokens).concat(), TOKENIZER.decode(&tokens, true));
    }
}

fn character_parts() -> Vec<u32> {
    TOKENIZER.encode("日本語🙂🙃ẞ\u{200b}", false).unwrap().into_iter().map(|token| token.0).collect()
}
