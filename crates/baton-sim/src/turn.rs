//! What clients make of a conversation before they go on with it.

use baton_types::{KvLayout, TokenId};

use crate::ask::{Ask, Conversation};
use crate::client::answer;
use crate::random::Random;
use crate::workload::draw_token;

/// The next prompt after a request and its answer, and how a router can tell whose it is.
pub(crate) fn next_prompt(
    random: &mut Random,
    earlier: &Ask,
    layout: &KvLayout,
) -> (Vec<TokenId>, Conversation) {
    let asked = earlier.prompt.len();
    let said = answer(earlier, layout);
    let mut prompt: Vec<TokenId> = earlier.prompt.iter().copied().chain(said).collect();
    let mut new = random.skewed(1..20) as usize;
    match random.below(12) {
        // One word of it was corrected.
        0 => {
            let place = random.below(prompt.len() as u64) as usize;
            prompt[place] = draw_token(random);
        }
        // It has got another beginning, of another length.
        1 => {
            let (from, to) = (random.below(9) as usize, random.below(9) as usize);
            let beginning: Vec<TokenId> = (0..to).map(|_| draw_token(random)).collect();
            let rest = prompt.split_off(from.min(prompt.len()));
            prompt = beginning.into_iter().chain(rest).collect();
        }
        // A part was left out.
        2 => {
            let from = random.below(prompt.len() as u64) as usize;
            let to = random.within(from as u64..prompt.len() as u64) as usize;
            prompt.drain(from..to);
        }
        // The same once more.
        3 => {
            prompt.truncate(asked);
            new = 0;
        }
        // The answer lost what was thought before it.
        4 => {
            let thoughts = random.below((prompt.len() - asked) as u64 + 1) as usize;
            prompt.drain(asked..asked + thoughts);
        }
        _ => {}
    }
    let history = prompt.len();
    prompt.extend((0..new).map(|_| draw_token(random)));
    if prompt.is_empty() {
        prompt.push(draw_token(random));
    }
    let conversation = match &earlier.conversation {
        Conversation::Messages(ends) => {
            let mut ends: Vec<usize> = ends.iter().copied().filter(|end| *end < history).collect();
            ends.extend([history, prompt.len()]);
            ends.dedup();
            Conversation::Messages(ends)
        }
        other => other.clone(),
    };
    (prompt, conversation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn messages_end_inside_the_prompt_and_one_after_the_other() {
        let scenario =
            (0..).map(|seed| Scenario::draw(seed, false)).find(|scenario| !scenario.requests.is_empty());
        let scenario = scenario.expect("some seed asks something");
        let mut ask = scenario.requests[0].clone();
        ask.conversation = Conversation::Messages(vec![ask.prompt.len()]);
        let random = &mut Random::new(5);
        for _ in 0..200 {
            let (prompt, conversation) = next_prompt(random, &ask, &scenario.layout);
            let Conversation::Messages(ends) = &conversation else { panic!("{conversation:?}") };
            assert!(ends.is_sorted_by(|a, b| a < b) && ends.last() == Some(&prompt.len()), "{ends:?}");
            if prompt.len() < 200 {
                (ask.prompt, ask.conversation) = (prompt, conversation);
            }
        }
    }
}
