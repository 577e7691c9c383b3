//! The contest as text.

use std::fmt::Write;

use super::speed::{Phase, Speed, Summary};

/// `Baton / llama.cpp's best` is to be at least this.
const ASKED: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Baton,
    LlamaCpp,
}

/// One side in one of its formats, and what was measured of it; a speed for each round.
#[derive(Debug)]
pub struct Row {
    pub side: Side,
    pub format: String,
    pub speeds: Vec<Speed>,
}

impl Row {
    fn name(&self) -> String {
        let side = match self.side {
            Side::Baton => "Baton",
            Side::LlamaCpp => "llama.cpp",
        };
        format!("{side} {}", self.format)
    }

    fn summary(&self, phase: Phase) -> Summary {
        Summary::of(self.speeds.iter().map(|speed| phase.of(speed)).collect())
    }

    /// The ratios to `other`, round by round.
    fn ratios(&self, other: &Self, phase: Phase) -> Summary {
        let rounds = self.speeds.iter().zip(&other.speeds);
        Summary::of(rounds.map(|(ours, theirs)| phase.of(ours) / phase.of(theirs)).collect())
    }
}

/// Medians and ranges, then each of Baton's ratios to the fastest of llama.cpp's formats.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<24}", "tokens per second");
    for phase in Phase::ALL {
        let _ = write!(text, " {:>16} {:<16}", phase.title(), "(min-max)");
    }
    text.push('\n');
    for row in rows {
        let _ = write!(text, "{:<24}", row.name());
        for phase in Phase::ALL {
            let Summary { median, min, max } = row.summary(phase);
            let range = format!("({min:.1}-{max:.1})");
            let _ = write!(text, " {median:>16.1} {range:<16}");
        }
        text.push('\n');
    }
    text.push('\n');
    for phase in Phase::ALL {
        let median = |row: &Row| row.summary(phase).median;
        let theirs = rows.iter().filter(|row| row.side == Side::LlamaCpp);
        let Some(best) = theirs.max_by(|a, b| median(a).total_cmp(&median(b))) else { continue };
        for ours in rows.iter().filter(|row| row.side == Side::Baton) {
            let ratio = median(ours) / median(best);
            // A verdict that single rounds contradict is one to measure again.
            let Summary { min, max, .. } = ours.ratios(best, phase);
            let _ = writeln!(
                text,
                "{:<15} {} / {} = {ratio:.3} ({min:.2}-{max:.2} by round); at least {ASKED:.1} asked: {}",
                phase.title(),
                ours.name(),
                best.name(),
                if ratio >= ASKED { "yes" } else { "no" }
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(side: Side, format: &str, prefill: f64, decode: f64) -> Row {
        // One round in three was disturbed; the median must not see it.
        let speeds = [1.0, 1.0, 0.1].map(|f| Speed { prefill: f * prefill, decode: f * decode });
        Row { side, format: format.into(), speeds: speeds.into() }
    }

    #[test]
    fn each_phase_is_compared_with_the_best_of_the_other_side() {
        let rows = [
            row(Side::Baton, "exact", 300.0, 50.0),
            row(Side::LlamaCpp, "F32", 200.0, 40.0),
            row(Side::LlamaCpp, "Q8_0", 100.0, 100.0),
        ];
        let text = table(&rows);
        assert!(
            text.contains(
                "Baton exact / llama.cpp F32 = 1.500 (1.50-1.50 by round); at least 1.0 asked: yes"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "Baton exact / llama.cpp Q8_0 = 0.500 (0.50-0.50 by round); at least 1.0 asked: no"
            ),
            "{text}"
        );
        assert!(text.contains("300.0 (30.0-300.0)"), "{text}");
    }
}
