//! When each conversation begins: computed before anything is sent, so that no server can slow it.

use std::time::Duration;

use crate::arrivals::Arrivals;
use crate::conversation::Conversation;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Sessions come at a rate (per second), whenever they were recorded; within one, offsets hold.
    Arrivals { arrivals: Arrivals, rate: f64, time_scale: f64 },
    /// As recorded. A time scale of 2 is twice as fast.
    Recorded { time_scale: f64 },
}

/// Where a workload ends; the first limit that is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Turns of all conversations.
    pub requests: Option<u64>,
    /// No conversation begins later.
    pub duration: Option<Duration>,
}

/// One conversation, and when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub at: Duration,
    /// The index of its first turn among all requests; the same whatever the schedule.
    pub first_index: u64,
    pub conversation: Conversation,
}

impl Schedule {
    /// The beginnings in order of time. Think times are scaled as offsets are.
    ///
    /// # Panics
    /// If a rate or time scale is not a positive number.
    pub fn starts(
        self,
        conversations: impl IntoIterator<Item = Conversation>,
        limits: Limits,
        seed: u64,
    ) -> Vec<Start> {
        let time_scale = self.time_scale();
        let mut sessions = SessionStarts::new(self, seed);
        let mut starts = Vec::new();
        for mut start in queue(conversations, limits.requests, time_scale) {
            let session_at = sessions.of(start.conversation.session);
            if limits.duration.is_some_and(|end| session_at > end) {
                break;
            }
            start.at = session_at + start.conversation.offset.div_f64(time_scale);
            if limits.duration.is_none_or(|end| start.at <= end) {
                starts.push(start);
            }
        }
        // Stable: what begins at once begins in the order of the workload.
        starts.sort_by_key(|start| start.at);
        starts
    }

    pub fn time_scale(self) -> f64 {
        match self {
            Self::Arrivals { time_scale, .. } | Self::Recorded { time_scale } => time_scale,
        }
    }
}

/// Conversations for clients that take the next when they have done the one before, with no moments of their own; until there
/// are so many `requests` (turns), if that is limited. Think times are scaled.
///
/// # Panics
/// If the time scale is not a positive number.
pub fn queue(
    conversations: impl IntoIterator<Item = Conversation>,
    requests: Option<u64>,
    time_scale: f64,
) -> impl Iterator<Item = Start> {
    assert!(time_scale > 0.0 && time_scale.is_finite(), "a time scale is positive");
    let mut next_index = 0;
    conversations.into_iter().map_while(move |mut conversation| {
        let left = requests.map_or(u64::MAX, |most| most.saturating_sub(next_index));
        if left == 0 {
            return None;
        }
        conversation.turns.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        for turn in &mut conversation.turns {
            turn.think = turn.think.div_f64(time_scale);
        }
        let first_index = next_index;
        next_index += conversation.turns.len() as u64;
        Some(Start { at: Duration::ZERO, first_index, conversation })
    })
}

/// The beginning of each session, as its number first comes up.
struct SessionStarts<I> {
    arrivals: Option<I>,
    current: Option<(u32, Duration)>,
}

impl SessionStarts<Box<dyn Iterator<Item = Duration>>> {
    fn new(schedule: Schedule, seed: u64) -> Self {
        let arrivals: Option<Box<dyn Iterator<Item = Duration>>> = match schedule {
            Schedule::Arrivals { arrivals, rate, .. } => Some(Box::new(arrivals.at_rate(rate, seed))),
            Schedule::Recorded { .. } => None,
        };
        Self { arrivals, current: None }
    }

    fn of(&mut self, session: u32) -> Duration {
        match self.current {
            Some((current, at)) if current == session => at,
            _ => {
                let at = self.arrivals.as_mut().and_then(Iterator::next).unwrap_or_default();
                self.current = Some((session, at));
                at
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Prompt;

    fn conversation(session: u32, offset_s: u64, turns: usize) -> Conversation {
        let mut one = Conversation::single(Prompt::from_keys(4, 16, [], 0), 1);
        one.turns = vec![one.turns[0].clone(); turns];
        one.turns.iter_mut().skip(1).for_each(|turn| turn.think = Duration::from_secs(8));
        Conversation { session, offset: Duration::from_secs(offset_s), ..one }
    }

    fn seconds(starts: &[Start]) -> Vec<(f64, u64, usize)> {
        starts.iter().map(|s| (s.at.as_secs_f64(), s.first_index, s.conversation.turns.len())).collect()
    }

    #[test]
    fn sessions_come_at_the_rate_and_their_parts_in_step() {
        let all =
            [conversation(0, 0, 2), conversation(0, 6, 1), conversation(1, 0, 1), conversation(2, 1, 1)];
        let schedule = Schedule::Arrivals { arrivals: Arrivals::Constant, rate: 0.5, time_scale: 2.0 };
        let starts = schedule.starts(all.clone(), Limits::default(), 0);
        assert_eq!(seconds(&starts), [(0.0, 0, 2), (2.0, 3, 1), (3.0, 2, 1), (4.5, 4, 1)]);
        assert_eq!(starts[0].conversation.turns[1].think, Duration::from_secs(4));
        let recorded = Schedule::Recorded { time_scale: 1.0 }.starts(all.clone(), Limits::default(), 0);
        assert_eq!(seconds(&recorded), [(0.0, 0, 2), (0.0, 3, 1), (1.0, 4, 1), (6.0, 2, 1)]);
        let queue: Vec<Start> = queue(all, Some(4), 1.0).collect();
        assert_eq!(queue.iter().map(|s| s.first_index).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn limits_cut_what_is_endless() {
        let endless = || (0..).map(|session| conversation(session, 0, 2));
        let schedule = Schedule::Arrivals { arrivals: Arrivals::Constant, rate: 4.0, time_scale: 1.0 };
        let requests = Limits { requests: Some(5), duration: None };
        assert_eq!(
            seconds(&schedule.starts(endless(), requests, 0)),
            [(0.0, 0, 2), (0.25, 2, 2), (0.5, 4, 1)]
        );
        let duration = Limits { requests: None, duration: Some(Duration::from_secs(1)) };
        assert_eq!(schedule.starts(endless(), duration, 0).len(), 5);
    }
}
