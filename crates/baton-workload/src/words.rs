//! Text of a wanted length, for endpoints that are asked in words.

use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::prompt::{BLOCK, Prompt, TAIL, block_random};

/// Short, common English: nearly every vocabulary has each of them, behind a blank, as one token.
const COMMON: [&str; 187] = [
    "about", "after", "again", "air", "all", "also", "always", "and", "animal", "answer", "any", "area",
    "ask", "back", "bad", "base", "be", "because", "become", "before", "best", "better", "big", "black",
    "blue", "body", "book", "both", "boy", "build", "but", "by", "call", "came", "can", "car", "care",
    "carry", "change", "city", "close", "cold", "come", "could", "country", "course", "cut", "dark", "day",
    "deep", "did", "do", "door", "down", "draw", "dry", "each", "early", "earth", "east", "eat", "end",
    "even", "every", "eye", "face", "fact", "fall", "family", "far", "fast", "father", "few", "field",
    "find", "fire", "first", "fish", "five", "food", "foot", "for", "form", "four", "free", "friend", "from",
    "front", "full", "game", "gave", "get", "girl", "give", "go", "gold", "good", "great", "green", "ground",
    "group", "grow", "had", "half", "hand", "hard", "has", "have", "he", "head", "hear", "heart", "heat",
    "help", "her", "here", "high", "him", "his", "hold", "home", "horse", "hot", "hour", "house", "how",
    "idea", "if", "in", "into", "is", "it", "just", "keep", "kind", "king", "know", "land", "large", "last",
    "late", "learn", "leave", "left", "less", "let", "letter", "life", "light", "like", "line", "list",
    "little", "live", "long", "look", "lot", "love", "low", "made", "main", "make", "man", "many", "map",
    "mark", "may", "mean", "men", "might", "mile", "mind", "money", "moon", "more", "most", "mother", "move",
    "much", "music", "must", "name", "near", "need", "never", "new", "next",
];

/// All of them, for whoever wants to know their tokens.
pub fn sample() -> String {
    COMMON.join(" ")
}

/// As many words as the prompt has tokens; equal beginnings for equal keys, as [`Prompt::write_out`] has them.
pub fn write_out(prompt: &Prompt, seed: u64) -> String {
    let mut text = String::with_capacity(prompt.tokens as usize * 5);
    let mut left = prompt.tokens;
    let tail = std::iter::once((TAIL, prompt.tail_key, u32::MAX));
    for (kind, key, most) in prompt.keys().map(|key| (BLOCK, key, prompt.block_tokens)).chain(tail) {
        let count = left.min(most);
        write_words(&mut text, block_random(seed, kind, key), count);
        left -= count;
        if left == 0 {
            break;
        }
    }
    text
}

fn write_words(text: &mut String, mut random: ChaCha8Rng, count: u32) {
    for _ in 0..count {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(COMMON.choose(&mut random).copied().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_length_and_share_their_beginnings() {
        let [a, b] =
            [[1, 2, 3], [1, 2, 9]].map(|keys| write_out(&Prompt::from_keys(44, 16, keys, keys[2]), 7));
        assert_eq!(a.split(' ').count(), 44);
        let common = a.split(' ').zip(b.split(' ')).take_while(|(a, b)| a == b).count();
        assert!((32..=33).contains(&common), "{common}");
        assert_eq!(write_out(&Prompt::from_keys(5, 16, [], 1), 7).split(' ').count(), 5);
    }
}
