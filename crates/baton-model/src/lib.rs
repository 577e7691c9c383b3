//! baton-model

pub mod chat_template;
pub mod detokenizer;
pub mod fetch;
pub mod stop;
pub mod tokenizer;
