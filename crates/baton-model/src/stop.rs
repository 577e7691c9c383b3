//! Stop strings: the answer ends before the first of them, wherever tokens cut it.

/// What a piece of text led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// Index of the stop string that was met; nothing may be pushed after it.
    pub stop: Option<usize>,
}

/// Watches one answer. Holds back only what may be the beginning of a stop string, and so at most one byte less than the
/// longest of them.
///
/// Of several stop strings the one that is complete first ends the answer, and of those that end together the longest. So
/// the outcome depends on the text alone, and not on how tokens or steps cut it (I7).
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// # Panics
    /// If a stop string is empty.
    pub fn new(stops: Vec<String>) -> Self {
        assert!(stops.iter().all(|stop| !stop.is_empty()), "an empty stop string stops everything");
        Self { stops, held: String::new() }
    }

    /// Takes the next piece of the answer.
    pub fn push(&mut self, piece: &str) -> StopStep {
        let old = self.held.len();
        self.held.push_str(piece);
        if let Some((start, stop)) = self.first_match(old) {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return StopStep { text, stop: Some(stop) };
        }
        let keep_from = self.held.len() - self.open_bytes();
        let kept = self.held.split_off(keep_from);
        StopStep { text: std::mem::replace(&mut self.held, kept), stop: None }
    }

    /// Takes a piece in which stop strings do not count yet (`min_tokens`): all of it may be sent, and no stop string begins
    /// in it.
    pub fn pass(&mut self, piece: &str) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        text
    }

    /// What was held back, when the answer ends for another reason.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the first complete stop string starts, and which it is. It ends behind `old`: what was held had none.
    fn first_match(&self, old: usize) -> Option<(usize, usize)> {
        for (offset, c) in self.held[old..].char_indices() {
            let seen = &self.held[..old + offset + c.len_utf8()];
            let met = self.stops.iter().enumerate().filter(|(_, stop)| seen.ends_with(stop.as_str()));
            // `max_by_key` takes the last of equals; equal stop strings are the same outcome.
            if let Some((index, stop)) = met.max_by_key(|(_, stop)| stop.len()) {
                return Some((seen.len() - stop.len(), index));
            }
        }
        None
    }

    /// The length of the longest end of the held text that begins a stop string.
    fn open_bytes(&self) -> usize {
        let begins = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            let mut lengths = (1..=longest).rev();
            lengths.find(|n| self.held.as_bytes().ends_with(&stop.as_bytes()[..*n])).unwrap_or(0)
        };
        let open = self.stops.iter().map(begins).max().unwrap_or(0);
        debug_assert!(self.held.is_char_boundary(self.held.len() - open));
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect())
    }

    /// All pieces, and then the end: the whole text and the stop.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = matcher(stops);
        let mut text = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            text.push_str(&step.text);
            if step.stop.is_some() {
                return (text, step.stop);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    #[test]
    fn stops_are_met_across_pieces() {
        assert_eq!(run(&["###"], &["a#", "#b#", "##c"]), ("a##b".into(), Some(0)));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n", "\nc"]), ("a\nb".into(), Some(0)));
        assert_eq!(run(&["é"], &["caf", "é"]), ("caf".into(), Some(0)));
        assert_eq!(run(&["x"], &["abc"]), ("abc".into(), None));
        assert_eq!(run(&["aab"], &["aa", "ab"]), ("a".into(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn the_first_complete_one_ends_the_text() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["xabc"]), ("x".into(), Some(1)));
        assert_eq!(run(&["b", "a"], &["a b"]), ("".into(), Some(1)));
    }

    #[test]
    fn only_a_possible_beginning_is_held() {
        let mut m = matcher(&["STOP", "é!"]);
        assert_eq!(m.push("abcST").text, "abc");
        assert_eq!(m.push("x").text, "STx");
        assert_eq!(m.push("é").text, "");
        // 'è' shares its first byte with 'é': no half character is held.
        assert_eq!(m.push("è").text, "éè");
        assert_eq!(m.push("ST").text, "");
        assert_eq!(m.finish(), "ST");
    }

    #[test]
    fn passed_text_neither_stops_nor_begins_a_stop() {
        let mut m = matcher(&["##"]);
        assert_eq!(m.pass("a##b#"), "a##b#");
        assert_eq!(m.push("#c"), StopStep { text: "#c".into(), stop: None });
    }

    /// The definition: the shortest beginning of the text that ends with a stop string.
    fn reference(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|i| text.is_char_boundary(*i)) {
            let met = stops.iter().enumerate().filter(|(_, s)| text[..end].ends_with(s.as_str()));
            if let Some((i, s)) = met.max_by_key(|(_, s)| s.len()) {
                return (text[..end - s.len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_text_before_the_first_stop(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcéè🙂]{0,4}", 0..12),
        ) {
            let stops_ref: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces_ref: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops_ref, &pieces_ref), reference(&stops, &pieces.concat()));
        }

        #[test]
        fn what_is_held_could_still_become_a_stop(
            stops in prop::collection::vec("[ab]{1,4}", 1..4),
            pieces in prop::collection::vec("[abc]{0,3}", 0..8),
        ) {
            let mut m = StopMatcher::new(stops.clone());
            for piece in &pieces {
                if m.push(piece).stop.is_some() {
                    break;
                }
                prop_assert!(m.held.is_empty() || stops.iter().any(|s| s.starts_with(&m.held) && *s != m.held));
            }
        }
    }
}
