//! What computes tokens: model runners over the paged KV pool, the weights they read, and how the next token is chosen. And
//! what stands between tokens and text: tokenizer, chat template, detokeniser, stop strings; and where models come from.

pub mod chat_template;
pub mod detokenizer;
pub mod fetch;
pub mod stop;
pub mod tokenizer;
pub mod weights;
