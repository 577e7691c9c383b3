//! What is asked.

use crate::client::Ask;

pub const PROMPTS: usize = 60;

/// One of a few prompts that share beginnings, from a few bytes to many blocks long; every second answer is streamed.
pub fn ask(n: usize) -> Ask {
    let prompt = format!(
        "{} prompt number {n} {}",
        "shared beginning ".repeat(n % 7),
        "and more ".repeat((n * n) % 200)
    );
    Ask { prompt, max_tokens: 40, stream: n % 2 == 1 }
}
